"""One rank of a small training run with scripted episodes; rank 0 writes what came of it.

The episodes are a function of the games, so that any number of ranks learns from the same ones.
"""

import json
import math
import random
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback

from miner.config.settings import Settings
from miner.distributed.ranks import Ranks, join_ranks
from miner.inference.merged_weights import weights_on_cpu
from miner.learning import trainer as trainer_module
from miner.learning.forest import Row as TreeRow
from miner.learning.learner import with_adapters
from miner.learning.trainer import EpisodeTrainer, grpo_config
from miner.learning.update_guard import UpdateGuard
from miner.reporting.token_records import TokenRecords
from tests.builders import build_qwen3, build_tokenizer

GROUPS, GROUP_SIZE, STEPS = 2, 4, 3

RULES = list(range(2, 26))
"""That every prompt begins with, so that trees have rows of games that other ranks play."""

Row = dict[str, object]

ROWS = (1, 4)
"""Of each episode of an even and of an odd game: one rank has many more rows than the other."""


def episode(game: str, member: int) -> tuple[list[Row], dict[str, object]]:
    """The rows of an episode, two turns in each, and TRL's columns of it."""
    prompt = RULES + random.Random(game).choices(range(26, 300), k=5)  # of the whole group
    rng = random.Random(f"{game}/{member}")
    rows = [row(rng, prompt, first=2 * number) for number in range(ROWS[int(game) % 2])]
    rewards = [(turn, rng.random()) for turn in range(2 * len(rows))]
    weights, entropies = [None] * len(rows), [0.0] * len(rows)
    if len(rows) > 2:  # the first is taught, the second is of mounted data
        weights[:2], entropies[:2] = [rng.random(), rng.random()], [rng.random(), None]
        for each in rows[:2]:
            each["logprobs"] = [math.nan] * len(each["logprobs"])
    return rows, {
        "turn_ids": [row["turn_ids"] for row in rows],
        "weights": weights,
        "entropies": entropies,
        "turn_rewards": rewards,
        "episode_reward": rng.random(),
        "episode": {
            "task": f"game {game}, member {member}",
            "score": sum(reward for _, reward in rewards),
            "parts": [(turn, reward, 0.0) for turn, reward in rewards],
        },
    }


def row(rng: random.Random, prompt: list[int], first: int) -> Row:
    """TRL's columns of a row with the turns `first` and the one after it."""
    length = rng.randrange(6, 30)
    turns = [rng.choice((-1, first, first + 1)) for _ in range(length - 2)] + [first, first + 1]
    return {
        "prompt_ids": prompt[: rng.randrange(len(RULES), len(prompt))],
        "completion_ids": [rng.randrange(2, 300) for _ in range(length)],
        "logprobs": [0.0] * length,
        "env_mask": [int(turn >= 0) for turn in turns],
        "turn_ids": turns,
    }


def play(prompts: list[str], trainer: object) -> dict[str, list[object]]:
    """A rollout function without a model."""
    groups = [(game, len(list(same))) for game, same in groupby(prompts)]
    episodes = [episode(game, member) for game, size in groups for member in range(size)]
    rows = [row for rows, _ in episodes for row in rows]
    by_row = {name: [row[name] for row in rows] for name in rows[0]}
    by_episode = {name: [one[name] for _, one in episodes] for name in episodes[0][1]}
    return by_row | by_episode


def settings_of(run_dir: Path, overrides: list[str]) -> Settings:
    """Of a run whose episodes are scripted."""
    return Settings.load(
        None,
        [
            f"run_dir={run_dir}",
            f"rollout.groups_per_step={GROUPS}",
            f"rollout.group_size={GROUP_SIZE}",
            f"optimizer.max_steps={STEPS}",
            "rollout.max_episode_tokens=64",
            "optimizer.micro_batch_tokens=100",
            *overrides,
        ],
        environ={},
    )


def make_trainer(
    settings: Settings,
    ranks: Ranks,
    guard: UpdateGuard | None = None,
    model: PreTrainedModel | None = None,
) -> EpisodeTrainer:
    """One that learns from scripted episodes."""
    torch.set_num_threads(1)
    model = model or build_qwen3()
    model.config._name_or_path = str(settings.run_dir.parent / "reference")  # of a KL term
    return EpisodeTrainer(
        model=with_adapters(model, settings) if settings.model.tuning == "lora" else model,
        args=grpo_config(settings, num_processes=ranks.count),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(GROUPS * STEPS)]}),
        reward_funcs=[lambda episode_reward, **_: episode_reward],
        rollout_func=play,
        credit=settings.reward.credit,
        guard=guard,
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
        gather=ranks.gather,
        tokens=TokenRecords(settings.run_dir, settings.token_records, (ranks.rank, ranks.count)),
    )


def learn(result: Path, overrides: list[str], poisoned_step: int | None = None) -> None:
    """One rank of a run with these settings; the advantages of `poisoned_step` are not finite."""
    settings = settings_of(result.with_suffix(""), overrides)
    ranks = join_ranks(settings)
    trainer = make_trainer(settings, ranks, UpdateGuard())
    if poisoned_step is not None:
        poison(trainer, poisoned_step)
    exchanged, backward = [], trainer.accelerator.backward

    def watched(loss: torch.Tensor, **more: object) -> None:
        exchanged.append(getattr(trainer.model_wrapped, "require_backward_grad_sync", None))
        backward(loss, **more)

    trainer.accelerator.backward = watched
    trainer.train()
    whole = weights_on_cpu(trainer.model)
    if ranks.leads:
        steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
        weights = {name: tensor.float().flatten()[:64].tolist() for name, tensor in whole.items()}
        learned = {
            "steps": steps,
            "weights": weights,
            "exchanged": exchanged,
        }
        result.write_text(json.dumps(learned))
    ranks.detach()


SPREAD = {
    "stage3_param_persistence_threshold": 100,
    "stage3_prefetch_bucket_size": 600,
    "stage3_max_reuse_distance": 2000,
    "stage3_max_live_parameters": 20000,
}
"""DeepSpeed's thresholds in proportion to a small model: by its own such a model stays whole."""


def score_between_steps(result: Path) -> None:
    """One rank of a run whose weights ZeRO-3 really spreads, in bfloat16; after each step rows are
    scored without gradient and the weights are gathered, twice."""
    config = trainer_module.deepspeed_config

    def spread(stage: int) -> dict[str, Any]:
        made = config(stage)
        made["zero_optimization"] |= SPREAD
        return made

    trainer_module.deepspeed_config = spread
    overrides = ["model.dtype=bfloat16", "model.gradient_checkpointing=true"]
    settings = settings_of(result.with_suffix(""), ["optimizer.zero_stage=3", *overrides])
    ranks = join_ranks(settings)
    model = build_qwen3(tie_word_embeddings=False).to(torch.bfloat16)
    trainer = make_trainer(settings, ranks, model=model)
    rows = [TreeRow(np.arange(2, 30), np.arange(10, 28))]
    kept: list[bool] = []

    class Scores(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            before = weights_on_cpu(trainer.model)
            trainer.logprobs_of(rows)
            after = weights_on_cpu(trainer.model)
            kept.append(all(torch.equal(before[name], after[name]) for name in before))

    trainer.add_callback(Scores())
    trainer.train()
    norms = [each["grad_norm"] for each in trainer.state.log_history if "grad_norm" in each]
    if ranks.leads:
        result.write_text(json.dumps({"kept": kept, "norms": norms}))
    ranks.detach()


def poison(trainer: EpisodeTrainer, step: int) -> None:
    """Make one rank's loss infinite in one step."""
    compute = trainer._compute_loss

    def poisoned(model: torch.nn.Module, inputs: dict[str, object]) -> torch.Tensor:
        loss = compute(model, inputs)
        struck = trainer.state.global_step == step - 1 and trainer.accelerator.process_index == 1
        return loss * float("nan") if struck else loss

    trainer._compute_loss = poisoned
