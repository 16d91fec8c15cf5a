"""TRL's GRPOTrainer over trees of rows, in passes bounded by tokens.

TRL pads whole rows to the longest and computes each from its first token. Here it gets only the
tokens with loss: everything that it makes of them (ratios, clipping, KL, the mean over all of the
step, metrics) is its own, while their log-probabilities come from trees, in which the rows' common
beginnings are computed once. The gradient is that of all rows in one pass, over all processes; the
optimizer steps once.

A token whose logprob in the rollout is NaN was not sampled: a legal reply that the policy did not
choose, or a demonstration. Its ratio is 1, and metrics leave it out.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from miner.distributed.zero import release_prefetched, until_spread
from miner.learning.forest import Row, Tree, grow, nearly_within, rows_of, single
from miner.learning.packing import (
    Pass,
    exactly,
    few_passes,
    over_passes,
    padded_tokens,
    shared_out,
    tokens_in_line,
)
from miner.learning.tree_forward import let_take_trees, part_of, score
from miner.reporting.records import COMPUTED_TOKENS, LEFT_OUT, LOGPROB_GAP, ROW_TOKENS, ROWS

logger = logging.getLogger(__name__)

_FIRST = np.zeros(1, np.int64)
IDLE = [Tree(np.zeros(2, np.int64), np.arange(2), np.full(2, 2), [0], [_FIRST])]
"""For a process that has no tree left while others have: it counts nothing. Two tokens, since torch
compiles FlexAttention once more for a length of one."""


class TreeTrainer(GRPOTrainer):
    """GRPO that computes each token of a step once.

    Args:
        tokens_per_pass: tokens of a forward and backward pass at most, padding included; a single
            longer row is a separate pass.
        gather: this process's value -> those of all processes, in the order of their ranks.
        after_pass: called after each but the last one of a step, which may take minutes.
    """

    def __init__(
        self,
        *args: Any,
        tokens_per_pass: int,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
        after_pass: Callable[[], None] = lambda: None,
        **kwargs: Any,
    ) -> None:
        self._tokens_per_pass = tokens_per_pass
        self._gather_values = gather
        self._after_pass = after_pass
        self._rows: list[Row] = []
        self._scored: tuple[Tensor, Tensor | None, Tensor | None] | None = None
        self._gaps: list[Tensor] = []
        self.by_policy = False  # true: what was not sampled counts as often as the policy gives it
        self._learned_passes: list[tuple[Pass, Tensor]] = []
        super().__init__(*args, **kwargs)
        # TRL adds a mixture's load-balancing loss, a mean, once a pass: it would weigh more, the
        # smaller passes are, and a few hours of small steps move no expert's load
        self.aux_loss_enabled = False
        self._gather = self.accelerator.gather
        self.accelerator.gather = self._gather_rows

    def at_loss(self, values: Sequence[Sequence[float]]) -> Tensor:
        """Values of the tokens with loss, from those of all completion tokens of each row.

        Returns: float32 of shape (rows, most tokens with loss), padded with 0 on the right; rows
            are those of the latest rollout, in its order.
        """
        picked = [
            torch.tensor([by_token[at] for at in offsets], dtype=torch.float32)
            for by_token, offsets in zip(values, self._offsets, strict=True)
        ]
        return pad_sequence(picked, batch_first=True).to(self.accelerator.device)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """The parent's, of which the rows stay here: TRL continues with the tokens that have loss.

        A prompt is its first token then, and a row without loss one token that has none.
        """
        prompt_ids, ids, masks, texts, logprobs, *rest = super()._generate(prompts)
        masks = masks or [[1] * len(row) for row in ids]
        self._offsets = [np.flatnonzero(mask).tolist() or [0] for mask in masks]
        self._rows = rows_of(prompt_ids, ids, self._offsets)

        def with_loss(values: Sequence[Sequence[Any]]) -> list[list[Any]]:
            pairs = zip(values, self._offsets, strict=True)
            return [[by_token[at] for at in offsets] for by_token, offsets in pairs]

        first = [prompt[:1] for prompt in prompt_ids]
        return first, with_loss(ids), with_loss(masks), texts, with_loss(logprobs), *rest

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The parent's, with the number of each row, which TRL shuffles along."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        output["row"] = torch.arange(len(self._rows))
        return output

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The batch's loss, whose gradient is the last pass's: the others are added already.

        TRL's "dapo" divides by the tokens with loss of all processes' batches, so that the losses
        of passes add up. Only the caller's backward of the last pass ends in an optimizer step.
        """
        inputs = dict(inputs)
        if inputs["advantages"].dim() == 1:
            inputs["advantages"] = inputs["advantages"][:, None].expand(inputs["tool_mask"].shape)
        inputs, rows = self._of_all_processes(inputs)
        learned = self._learned(inputs, rows)
        shares = shared_out(
            lambda most: self._trees(learned, most),
            self._tokens_per_pass,
            self.accelerator.num_processes,
        )
        dealt = [self._few_passes(trees) for trees in shares]
        most = max(1, *map(len, dealt))
        *early, last = exactly(most, dealt[self.accelerator.process_index], self._size)
        self._record_work(inputs, rows, len(learned), shares)
        recorded = {name: len(values) for name, values in self._metrics["train"].items()}
        self._gaps, self._learned_passes = [], []
        done: Tensor | float = 0.0
        for trees in early:
            with self._gradients_kept(model):
                loss = self._pass_loss(model, inputs, trees)
                self.accelerator.backward(loss)
            done = done + loss.detach()
            self._after_pass()
        loss = self._pass_loss(model, inputs, last) + done
        self._join_metrics(recorded)
        if self.use_vllm:
            self._record_gaps(torch.cat(self._gaps))
        return loss

    def _of_all_processes(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], list[Row]]:
        """The batch with every process's rows, those of rank 0 first, and these rows."""
        mine = [self._rows[number] for number in inputs["row"].tolist()]
        if self.accelerator.num_processes == 1:
            return inputs, mine
        columns = {
            name: value.cpu()
            for name, value in inputs.items()
            if isinstance(value, Tensor) and value.dim() == 2
        }
        parts = self._gather_values((columns, mine))
        device = self.accelerator.device
        together = {
            name: pad_sequence(
                [line for columns, _ in parts for line in columns[name]], batch_first=True
            ).to(device)
            for name in columns
        }
        return inputs | together, [row for _, rows in parts for row in rows]

    def _learned(self, inputs: dict[str, Any], rows: Sequence[Row]) -> dict[int, Row]:
        """Rows by their place in the batch, without those of which nothing is learned.

        They have no advantage, so their gradient is 0; the mean is over their tokens as well. For
        the metrics those stay that trees compute anyway, and of an engine's without trees one.
        """
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()

        def rows_of(chosen: Tensor) -> dict[int, Row]:
            return {at: rows[at] for at in chosen.any(1).nonzero()[:, 0].tolist()}

        if self.beta:
            return rows_of(mask)
        needed = rows_of(mask & (inputs["advantages"] != 0))
        near = nearly_within(needed, rows_of(mask))
        if not self.takes_trees:
            others = sorted(near.keys() - needed.keys())[: 1 if self.use_vllm else 0]
            near = {number: near[number] for number in others}
        return needed | near

    def _pass_loss(self, model: torch.nn.Module, inputs: dict[str, Any], trees: Pass) -> Tensor:
        """TRL's loss of the sampled tokens of these trees, and that of the others."""
        part = part_of(inputs, trees or IDLE)
        logprobs, entropies = self._score(
            model, trees or IDLE, part["completion_ids"], part["completion_mask"]
        )
        mask = (part["completion_mask"] * part["tool_mask"] * bool(trees)).bool()
        sampling = part["sampling_per_token_logps"]
        sampled = mask & ~sampling.isnan()
        self._learned_passes.append((trees, logprobs.detach()))
        gap = logprobs.detach() - sampling
        self._gaps.append(gap[sampled])
        others = -part["advantages"] * (logprobs - logprobs.detach()).exp() * (mask & ~sampled)
        if self.by_policy:
            others = others * (logprobs.detach() * mask).sum(1, keepdim=True).exp()
        if self.use_vllm:  # as "token_truncate" in TRL, which would score all rows for it before
            part["advantages"] = part["advantages"] * self._ratio(gap).where(sampled, 1.0)
        part["tool_mask"] = sampled.long()
        self._scored = logprobs, entropies, None
        loss: Tensor = self._compute_loss(model, part)
        tokens = part["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        return loss + others.sum() / tokens

    def _ratio(self, gap: Tensor) -> Tensor:
        """The importance ratio of tokens whose logprobs in trainer and sampler differ by `gap`."""
        least, most = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        return gap.exp().clamp(least, most)

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """TRL's loss gets those of the pass; with a batch size it asks for all rows', without
        gradient."""
        if batch_size is None:
            assert self._scored is not None
            scored, self._scored = self._scored, None
            return scored
        ids, mask = input_ids[:, -logits_to_keep:], attention_mask[:, -logits_to_keep:]
        return self._scored_apart(model, self._rows, ids, mask), None, None

    @torch.no_grad()
    def logprobs_of(self, rows: Sequence[Row]) -> list[Tensor]:
        """Log-probabilities of each row's tokens with loss by the current weights, in nats, at the
        temperature of training; collective, each process for its own rows, also before training."""
        targets = [torch.from_numpy(row.ids[row.targets]) for row in rows or [Row(_FIRST, _FIRST)]]
        there = [torch.ones_like(ids) for ids in targets]
        ids, mask = (
            pad_sequence(lines, batch_first=True).to(self.accelerator.device)
            for lines in (targets, there)
        )
        with until_spread(self.accelerator.unwrap_model(self.model_wrapped)):
            found = self._scored_apart(self.model_wrapped, rows, ids, mask).cpu()
        release_prefetched(self.model_wrapped)
        return [line[: len(row.targets)] for line, row in zip(found, rows, strict=False)]

    def _scored_apart(
        self, model: torch.nn.Module, rows: Sequence[Row], ids: Tensor, mask: Tensor
    ) -> Tensor:
        """Log-probabilities of `ids`, the rows' tokens with loss, where `mask`; collective."""
        logprobs = torch.zeros(ids.shape, device=ids.device)
        whole = {"completion_ids": ids, "completion_mask": mask}
        passes = self._few_passes(self._trees(dict(enumerate(rows)), self._tokens_per_pass))
        most = max(1, *self._gather_values(len(passes)))  # each pass waits for all processes
        for trees in exactly(most, passes, self._size):
            part = part_of(whole, trees or IDLE)
            found, _ = self._score(
                model, trees or IDLE, part["completion_ids"], part["completion_mask"]
            )
            self._after_pass()
            if trees:
                numbers = [row for tree in trees for row in tree.rows]
                logprobs[numbers, : found.shape[1]] = found[:, : logprobs.shape[1]]
        return logprobs

    def _score(
        self, model: torch.nn.Module, trees: Pass, ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies of these trees' tokens with loss, each in its row's line.

        Args:
            ids, mask: of shape (rows, tokens), rows as they come in the trees.
        """
        inner: Any = self.accelerator.unwrap_model(model)
        inner = inner.get_base_model() if isinstance(inner, PeftModel) else inner
        there = mask.bool()
        with self.accelerator.autocast():  # as in the model's own forward, which samples
            found = score(model, inner, trees, ids[there])

        def in_lines(values: Tensor) -> Tensor:
            return torch.zeros(mask.shape, device=mask.device).masked_scatter(there, values.float())

        entropies = None if found.entropies is None else in_lines(found.entropies)
        return in_lines(found.logprobs), entropies

    def _trees(self, rows: Mapping[int, Row], most: int) -> list[Tree]:
        """Of about so many tokens at most; the number of a row is its number here."""
        return grow(rows, self._tokens_per_pass, most) if self.takes_trees else single(rows)

    def _few_passes(self, trees: Sequence[Tree]) -> list[Pass]:
        return few_passes(trees, self._tokens_per_pass, self._size)

    def _size(self, trees: Pass) -> int:
        """Tokens that a pass computes."""
        return tokens_in_line(trees) if self.takes_trees else padded_tokens(trees)

    @cached_property
    def takes_trees(self) -> bool:
        """Return whether rows become trees, in all processes alike, by what the model can take;
        collective when it is asked first, while training."""
        inner: Any = self.accelerator.unwrap_model(self.model)
        inner = inner.get_base_model() if isinstance(inner, PeftModel) else inner
        before = inner.config.get_text_config()._attn_implementation
        with self.accelerator.autocast():  # a trial of what training computes
            obstacle = let_take_trees(inner, self._gather_values)
            if not obstacle and self.ref_model is not None:
                reference = self.accelerator.unwrap_model(self.ref_model)
                obstacle = let_take_trees(reference, self._gather_values)
                if obstacle:
                    inner.set_attn_implementation(before)
        if obstacle:
            logger.warning("rows are computed one by one: the model takes no trees: %s", obstacle)
        return not obstacle

    @contextmanager
    def _gradients_kept(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside, backward only accumulates, and no optimizer step follows.

        `no_sync` keeps DDP from any exchange; ZeRO exchanges in each pass. DeepSpeed steps
        inside accelerate's backward unless gradients are marked as incomplete; it divides by no
        number of passes, as its accumulation is 1.
        """
        state = self.accelerator.gradient_state
        before = state.sync_gradients
        state._set_sync_gradients(False)
        try:
            if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
                yield
            else:
                with self.accelerator.no_sync(model):
                    yield
        finally:
            state._set_sync_gradients(before)

    def _gather_rows(self, tensor: Tensor) -> Tensor:
        """accelerate's gather, for tensors of which a process may have more rows than another.

        TRL gathers one value per row for its metrics; with different lengths, gather hangs or
        mixes values up.
        """
        if not tensor.dim() or self.accelerator.num_processes == 1:
            gathered: Tensor = self._gather(tensor)
            return gathered
        counts = self._gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        filled = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        filled[: len(tensor)] = tensor
        parts = self._gather(filled).chunk(len(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _join_metrics(self, recorded: dict[str, int]) -> None:
        """Make one value of what each pass has added to a metric since `recorded`."""
        tokens = torch.tensor([float(len(gap)) for gap in self._gaps], device=self.args.device)
        over_processes = self.accelerator.reduce(tokens, reduction="sum").tolist()
        for name, values in self._metrics["train"].items():
            first = recorded.get(name, 0)
            if len(values) - first == len(tokens):
                values[first:] = [over_passes(name, values[first:], over_processes)]

    def _record_gaps(self, gaps: Tensor) -> None:
        """Distance of the sampled tokens' logprobs from those they were sampled with."""
        sums = torch.stack(
            [gaps.abs().sum(), self._ratio(gaps).sum(), gaps.new_tensor(float(len(gaps)))]
        )
        gap, ratio, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        largest = self.accelerator.gather(gaps.abs().max().reshape(1) if len(gaps) else gaps)
        if count:
            recorded = self._metrics["train"]
            recorded[LOGPROB_GAP].append(gap / count)
            recorded["sampling/sampling_logp_difference/max"].append(largest.max().item())
            recorded["sampling/importance_sampling_ratio/mean"].append(ratio / count)

    def _record_work(
        self,
        inputs: dict[str, Any],
        rows: Sequence[Row],
        learned: int,
        shares: Sequence[Sequence[Tree]],
    ) -> None:
        """Counts of rows with loss, of rows learned from, and of their tokens."""
        there = (inputs["completion_mask"] * inputs["tool_mask"]).any(1).nonzero()[:, 0].tolist()
        counts = {
            ROWS: len(there),
            LEFT_OUT: len(there) - learned,
            ROW_TOKENS: sum(len(rows[at].path) for at in there),
            COMPUTED_TOKENS: sum(tree.tokens for trees in shares for tree in trees),
        }
        for name, value in counts.items():
            self._metrics["train"][name].append(float(value))
