"""TRL's GRPOTrainer with several rows per episode, and advantages per turn.

Everything else is TRL's: groups, loss, clipping, importance correction, checkpoints. The overrides
are small, and tests compare each with the parent's behaviour.
"""

import logging
import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from transformers import PreTrainedModel
from trl import GRPOConfig

from miner.config.run_files import CHECKPOINTS
from miner.config.settings import Settings
from miner.distributed.zero import deepspeed_config, refresh_masters
from miner.inference.engines import is_out_of_memory
from miner.learning.checkpoints import checkpoint_folder, refused_by_disk
from miner.learning.target_distance import Target, target_distance
from miner.learning.token_log import TokenLog, learned_lines
from miner.learning.tree_trainer import TreeTrainer
from miner.learning.update_guard import UpdateGuard
from miner.reporting.records import HALVINGS, TARGET_KL
from miner.reporting.token_records import TokenRecords
from miner.rewards.advantages import turn_advantages

Credit = Literal["episode", "turn", "all_moves", "own"]

logger = logging.getLogger(__name__)


def grpo_config(settings: Settings, *, num_processes: int = 1, cuda: bool = False) -> GRPOConfig:
    """TRL's configuration for these settings.

    One generation per optimizer step (steps_per_generation = gradient accumulation), so that
    sampling is exactly on-policy without vLLM, and needs no importance correction. In TRL's loop
    a step is one batch, so it may have more rows than prompts; the trainer cuts it into passes.
    """
    optimizer, rollout = settings.optimizer, settings.rollout
    recompute = settings.model.gradient_checkpointing
    group = max(2, rollout.group_size)  # TRL checks for that
    config = GRPOConfig(
        output_dir=str(settings.run_dir / CHECKPOINTS),
        per_device_train_batch_size=rollout.groups_per_step * group // num_processes,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_generations=group,
        max_completion_length=rollout.max_episode_tokens,
        temperature=rollout.temperature,
        learning_rate=optimizer.learning_rate,
        adam_beta2=optimizer.adam_beta2,
        max_grad_norm=optimizer.max_grad_norm,
        max_steps=optimizer.max_steps,
        loss_type="dapo",  # a mean over sampled tokens: each counts the same, in any row or pass
        beta=optimizer.beta,
        vllm_importance_sampling_correction=False,  # TreeTrainer's is of the pass that is learned
        shuffle_dataset=False,  # the task stream is shuffled already, and a resume must find it
        remove_unused_columns=False,
        use_cpu=not cuda,
        bf16=settings.model.dtype == "bfloat16",
        gradient_checkpointing=cuda if recompute is None else recompute,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.checkpoint.every_steps,
        report_to=list(settings.report_to),
        disable_tqdm=True,
        dataloader_pin_memory=cuda,
        ddp_find_unused_parameters=False,
        deepspeed=deepspeed_config(optimizer.zero_stage) if optimizer.zero_stage else None,
        seed=settings.seed,
    )
    if rollout.group_size == 1:  # and computes with it, for what needs no comparison in a group
        config.num_generations = 1
        config.per_device_train_batch_size //= 2
        config.generation_batch_size = rollout.groups_per_step
    return config


class EpisodeTrainer(TreeTrainer):
    """GRPO over whole episodes, each of one or more rows.

    The rollout's columns `prompt_ids`, `completion_ids`, `logprobs` and `env_mask` have one entry
    per row, rows of an episode next to each other; all others have one per prompt, which is one
    episode: `turn_ids` a list per row of the turn that sampled each completion token (or -1), and
    `weights` and `entropies`, if there, one per row, as in `RolloutRow`. Where `by_policy`, alike
    for all, the weight is an advantage, and counts as often as the policy gives that reply.

    Args:
        credit: "episode" gives all rows of an episode TRL's advantage of it; "turn" replaces them
            by advantages of each token with loss, from the column `turn_rewards`; with "own" they
            are in `turn_advantages`, and with "all_moves" only rows with a weight have one.
        guard: decides over updates of which something is not finite.
        tokens: gets each learned step's tokens.
        tokens_per_pass, gather, after_pass: see `TreeTrainer`.

    Attributes:
        halvings: number of times that the learning rate was halved; see `begin_again`.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        args: GRPOConfig,
        credit: Credit = "episode",
        guard: UpdateGuard | None = None,
        tokens: TokenRecords | None = None,
        **kwargs: Any,
    ) -> None:
        self.halvings = 0
        self._learning_rate_factor: Callable[[int], float] = lambda step: 1.0
        self._credit = credit
        self._group_size: int = args.num_generations or 1
        self.guard = guard or UpdateGuard()
        self._targets: list[Target] = []
        self._unsound: dict[str, torch.Tensor] = {}
        super().__init__(model=model, args=args, **kwargs)
        decode = kwargs["processing_class"].batch_decode
        self._token_log = TokenLog(tokens, decode) if tokens and tokens.keep else None

    def learn_from(
        self,
        rollout: Callable[..., dict[str, list[Any]]],
        learning_rate_factor: Callable[[int], float] = lambda step: 1.0,
        *,
        corrected: bool = False,
    ) -> None:
        """Connect what a run plays with; before training.

        Args:
            rollout: TRL's `rollout_func`.
            learning_rate_factor: optimizer step -> factor on the peak learning rate.
            corrected: true if the rollout's logprobs are another engine's, and correct the loss as
                those of TRL's vLLM do.
        """
        self.rollout_func = rollout
        self._learning_rate_factor = learning_rate_factor
        if corrected:  # as use_vllm in args, but the engine is ours: it syncs when it plays
            engine: Any = SimpleNamespace(sync_weights=lambda: None)
            self.use_vllm = True
            self.vllm_generation = engine
            self._last_loaded_step = -1

    def end_between_steps(self, *, save: bool) -> None:
        """End training as transformers does, where an exception has ended it; collective."""
        if save:
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self.callback_handler.on_train_end(self.args, self.state, self.control)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """By planned steps and time, from the run's step on; the parent's know only steps."""
        if self.lr_scheduler is None:
            steered = optimizer or self.optimizer
            assert steered is not None
            for group in steered.param_groups:
                group.setdefault("initial_lr", group["lr"])

            def factor(step: int) -> float:
                return self._learning_rate_factor(step) * 0.5**self.halvings

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                steered, factor, last_epoch=self.state.global_step - 1
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def begin_again(self, halvings: int) -> None:
        """Continue from weights that were put into the model, with moments of none before them.

        Steps and the schedule continue as they are.

        Args:
            halvings: see `halve_to`.
        """
        optimizer: Any = self.optimizer
        if self.is_deepspeed_enabled:
            refresh_masters(self.model_wrapped)
        while hasattr(optimizer, "optimizer"):  # accelerate's holds DeepSpeed's, and that torch's
            optimizer = optimizer.optimizer
        for state in optimizer.state.values():
            for value in state.values():  # Adam's, the count of its steps among them
                value.zero_()
        self.halve_to(halvings)

    def halve_to(self, halvings: int) -> None:
        """Set how often the learning rate is halved in all."""
        assert self.lr_scheduler is not None, "training has begun"
        if halvings == self.halvings:
            return
        self.halvings = halvings
        self.lr_scheduler.last_epoch = self.state.global_step - 1
        self.lr_scheduler.step()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The parent's. A disk that refuses costs a process that trains alone the checkpoint only;
        of several, some would wait for the others.

        Raises: `OSError` under DeepSpeed, whatever its writers have raised.
        """
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            if not refused_by_disk(error) or is_out_of_memory(error):
                raise
            if self.is_deepspeed_enabled:
                raise OSError(f"no checkpoint: {error}") from error
            step = self.state.global_step
            shutil.rmtree(checkpoint_folder(self.args, step), ignore_errors=True)
            logger.warning("step %d: no checkpoint: %s", step, error)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """The parent's, with weights by their names in memory, which alone it finds on a resume:
        some families' files have others."""
        model: Any = self.model
        if isinstance(model, PeftModel):
            super()._save(*args, **kwargs)
            return
        model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
        try:
            super()._save(*args, **kwargs)
        finally:
            del model.save_pretrained

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raises: `RuntimeError` where the parent warns: the run would continue with weights of the
        base's."""
        model: Any = self.model
        lost = {*load_result.missing_keys} - {*model.all_tied_weights_keys}
        if lost or load_result.unexpected_keys:
            raise RuntimeError(
                f"the checkpoint is not of this model: {len(lost)} weights are missing in it and "
                f"{len(load_result.unexpected_keys)} unknown, such as "
                f"{min(lost | {*load_result.unexpected_keys})}"
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The parent's; torch can load nothing to "cpu:0", the device of ranks on a CPU."""
        if self.args.device.type == "cpu":
            self.args._setup_devices = torch.device("cpu")
        super()._load_optimizer_and_scheduler(checkpoint)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The parent's, whose loss is remembered if it is not finite."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._watch("loss", loss)
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The parent's, whose tokens are recorded, and how far the policy is from its targets."""
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self._targets:
            mine = [self._targets[row] for row in inputs["row"].tolist()]
            everywhere = [target for part in self._gather_values(mine) for target in part]
            distance = target_distance(self._learned_passes, everywhere, self.accelerator.reduce)
            if distance is not None:
                self._metrics["train"][TARGET_KL].append(distance)
        if self._token_log:
            processes, step = self.accelerator.num_processes, self.state.global_step + 1
            clip = (self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max)
            rules = {
                "divisor": float(inputs["num_items_in_batch"].clamp(min=1.0)) / processes,
                "beta": self.beta,
                "clip": clip if self.use_vllm else None,
                "credit": self._credit,
                "by_policy": self.by_policy,
                "group_size": self._group_size,
            }
            rows = list(zip(self._rows, self._offsets, strict=True))
            place = len(rows), self.accelerator.process_index
            learned = learned_lines(self._learned_passes, *place, self._gather_values)
            self._token_log.add(step, rules, self._played, rows, inputs, learned)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._watch("log-probabilities", found[0])
        return found

    def _watch(self, name: str, values: torch.Tensor) -> None:
        """Note whether all values are finite, without waiting for the device."""
        unsound = ~values.detach().isfinite().all()
        self._unsound[name] = self._unsound.get(name, unsound) | unsound

    def _taken_unsound(self) -> set[str]:
        """Return the non-finite values since the last update, on any process: all must decide
        alike."""
        here = [name for name, unsound in self._unsound.items() if bool(unsound)]
        self._unsound.clear()
        return set(gather_object(here))

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        """Clips, and takes gradients away where something is not finite: optimizers skip what has
        none.

        DeepSpeed has stepped already, or has skipped the update by the same rule.
        Raises: `TrainingDivergedError` when that happened too often in a row.
        """
        norm = super()._clip_grad_norm(model)
        step = self.state.global_step + 1
        allowed = self.guard.allows(float(norm), step, self._taken_unsound())
        if not allowed and not self.is_deepspeed_enabled:
            model.zero_grad(set_to_none=True)
        return norm

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's, whose advantages of shape (episodes,) become ones of the rows."""
        if self.halvings:
            self._metrics["train"][HALVINGS].append(float(self.halvings))
        output = super()._generate_and_score_completions(inputs)
        self._played = inputs
        rows = [(number, ids) for number, one in enumerate(inputs) for ids in one["turn_ids"]]
        if len(rows) != len(output["completion_ids"]):
            raise ValueError(
                f"the rollout returned {len(output['completion_ids'])} rows and turn_ids of "
                f"{len(rows)}: one list of them belongs to each row"
            )
        output["advantages"] = self._credited(output, inputs, rows)
        self.by_policy = bool(inputs[0].get("by_policy"))
        if "weights" in inputs[0]:
            weights = [weight for one in inputs for weight in one["weights"]]
            divisor = sum(w for w in weights if w is not None)
            if self.by_policy:
                decided = {
                    (episode, row.ids[: row.targets[0]].tobytes())
                    for (episode, _), row, weight in zip(rows, self._rows, weights, strict=True)
                    if weight is not None
                }
                divisor = len(decided)
            entropies = [entropy for one in inputs for entropy in one["entropies"]]
            self._targets = [] if self.by_policy else [*zip(weights, entropies, strict=True)]
            output["advantages"] = self._weighted(output, weights, divisor)
        return output

    def _credited(
        self,
        output: dict[str, Any],
        inputs: list[dict[str, Any]],
        rows: list[tuple[int, Sequence[int]]],
    ) -> torch.Tensor:
        """Advantages of sampled tokens, shape (rows,) or (rows, tokens with loss).

        Args:
            rows: of each the number of its episode, and the turn of each completion token.
        """
        if self._credit == "episode":
            by_episode: torch.Tensor = output["advantages"]
            return by_episode[[episode for episode, _ in rows]]
        if self._credit == "all_moves":
            return output["advantages"].new_zeros(len(rows))
        by_turn: list[Any] = [one.get("turn_advantages") for one in inputs]
        if self._credit == "turn":
            # Groups may be split over processes: baselines need the episodes of all of them.
            rewards = gather_object([one["turn_rewards"] for one in inputs])
            everywhere = turn_advantages(rewards, self._group_size)
            by_turn = everywhere[self.accelerator.process_index * len(inputs) :][: len(inputs)]
        by_token = [
            [values[turn] if turn >= 0 else 0.0 for turn in ids]
            if (values := by_turn[episode])
            else [0.0] * len(ids)
            for episode, ids in rows
        ]
        return self.at_loss(by_token)

    def _weighted(
        self, output: dict[str, Any], weights: list[float | None], divisor: float
    ) -> torch.Tensor:
        """The advantages, where rows with a weight have the one that makes their loss a mean over
        decisions: of the cross-entropy, or where `by_policy` of what the policy gives away.

        TRL divides by the tokens of all processes' rows, which is multiplied out.

        Args:
            divisor: of this process's weights: their sum, or where `by_policy` the decisions.
        """
        advantages: torch.Tensor = output["advantages"]
        given = torch.tensor([math.nan if w is None else w for w in weights]).to(advantages)
        total = self.accelerator.reduce(torch.tensor(divisor).to(given))
        if not total > 0:
            return advantages
        if self.beta:  # the divergence is a mean over what was sampled
            sampled = output["tool_mask"] * ~output["sampling_per_token_logps"].isnan()
            counted = self.accelerator.reduce((sampled * output["completion_mask"]).sum().float())
            output["num_items_in_batch"] = counted.clamp(min=1.0)
        scaled = (given * output["num_items_in_batch"] / total)[:, None]
        by_token = advantages if advantages.dim() == 2 else advantages[:, None]
        return torch.where(scaled.isnan(), by_token, scaled).expand(output["completion_ids"].shape)
