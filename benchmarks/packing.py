"""What a budget of tokens saves over a fixed number of episodes: `python -m benchmarks.packing`.

A step's 128 episodes are real games, tokenised as the demo's model sees them, played by a random
legal policy. The network has the demo's size; its weights are untrained, which a pass's time does
not depend on. The trainer learns from the same episodes twice, forward and backward and without
the optimizer's update: in passes of so many episodes, padded to the longest of them, and in passes
of at most as many tokens as the largest of those had. Both take turns, and the ratio of their
medians is what the benchmark is for.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from miner.config.settings import Settings, load_settings
from miner.distributed.ranks import Ranks
from miner.environments.builtin import BuiltinSource
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.tiny_model.build import recipe_for, recipe_tokenizer
from miner.tiny_model.network import build_network
from miner.training.rollout_function import RolloutFunction, episode_reward
from miner.training.tasks import training_dataset
from miner.training.trainer import EpisodeTrainer, grpo_config

OPTION = re.compile(r"(\d+) ->")


class RandomSampler:
    """`Sampler` that names one of the actions listed last in the prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(0)

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """See `Sampler`."""
        asked = self._tokenizer.decode(list(prompt_ids)).rpartition("Legal Actions")[2]
        action = self._tokenizer(self._rng.choice(OPTION.findall(asked)))["input_ids"]
        ids = (*action, self._tokenizer.eos_token_id)
        return Sample(ids, (-1.0,) * len(ids), "stop")

    async def end_session(self, session: int) -> None:
        """See `Sampler`."""


@dataclass
class Way:
    """A trainer that holds the episodes of one step; seconds and tokens of learning from them."""

    name: str
    trainer: EpisodeTrainer
    seconds: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def learn(self) -> None:
        """All forward and backward passes of the step, once."""
        self.passes.clear()
        began = time.perf_counter()
        for rows in self.trainer._buffered_inputs:
            self.trainer.accelerator.backward(self.trainer.compute_loss(self.trainer.model, rows))
        self.seconds.append(time.perf_counter() - began)
        self.trainer.model.zero_grad()


def played(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    """The columns of one step's episodes, as TRL gets them."""
    renderer = ChatRenderer(tokenizer)
    params = EpisodeParams(
        SamplingParams(settings.rollout.max_reply_tokens), settings.rollout.max_episode_tokens
    )
    scheduler = Scheduler(BuiltinSource(), RandomSampler(tokenizer), renderer, params)
    rollout = RolloutFunction(
        lambda groups: asyncio.run(scheduler.run(groups)),
        settings.reward,
        renderer.eos_token_id,
        0,
        Ranks(),
    )
    columns = rollout(prompts(settings), None)
    if rollout.latest is None or rollout.latest.lost or rollout.latest.invalid_replies:
        raise RuntimeError(f"the games were not played as meant: {rollout.latest}")
    return columns


def prompts(settings: Settings) -> list[str]:
    """The games of the first step, each as often as its group has members."""
    games = training_dataset(settings)["prompt"][: settings.rollout.groups_per_step]
    return [game for game in games for _ in range(settings.rollout.group_size)]


def way(
    name: str, settings: Settings, tokenizer: PreTrainedTokenizerBase, columns: dict[str, list[Any]]
) -> Way:
    """The trainer of these settings, after the rollout and one round to warm up."""
    recipe = recipe_for(settings.environment.deck_sizes)
    trainer = EpisodeTrainer(
        model=build_network(tokenizer, recipe.network, seed=0),
        args=grpo_config(settings),
        processing_class=tokenizer,
        train_dataset=training_dataset(settings),
        reward_funcs=[episode_reward],
        rollout_func=lambda prompts, trainer: columns,
        learning_rate_factor=lambda step: 1.0,
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
    )
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    torch.manual_seed(0)  # TRL shuffles the rows of a step
    trainer._prepare_inputs([{"prompt": prompt} for prompt in prompts(settings)])
    made = Way(name, trainer)

    def note(module: Any, args: Any, kwargs: Any) -> None:
        made.passes.append(kwargs["input_ids"].numel())

    trainer.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    made.learn()
    made.seconds.clear()
    return made


def compare(folder: str, sizes: str, micro_batch: int, rounds: int) -> Table:
    """Both ways of learning from games of these deck sizes."""
    overrides = [f"run_dir={folder}", f"environment.deck_sizes={sizes}"]
    overrides += ["optimizer.max_steps=1", f"optimizer.micro_batch={micro_batch}"]
    settings = load_settings(None, overrides, environ={})
    tokenizer = recipe_tokenizer(recipe_for(settings.environment.deck_sizes))
    columns = played(settings, tokenizer)
    episodes = way(f"{micro_batch} episodes", settings, tokenizer, columns)
    budget = max(episodes.passes)
    packed = load_settings(None, [*overrides, f"optimizer.micro_batch_tokens={budget}"], environ={})
    tokens = way(f"{budget:,} tokens", packed, tokenizer, columns)
    for _ in range(rounds):
        episodes.learn()
        tokens.learn()
    rows = zip(columns["prompt_ids"], columns["completion_ids"], strict=True)
    lengths = [len(prompt) + len(completion) for prompt, completion in rows]
    title = f"decks {sizes}, episodes of {min(lengths):,} to {max(lengths):,} tokens"
    return table(title, [episodes, tokens], sum(lengths))


def table(title: str, ways: list[Way], tokens: int) -> Table:
    """Passes, padding and median seconds of each way, and its speed next to the first."""
    made = Table("a pass", "passes", "largest", "padding", "seconds", "speed", title=title)
    medians = [statistics.median(one.seconds) for one in ways]
    for one, median in zip(ways, medians, strict=True):
        made.add_row(
            one.name,
            f"{len(one.passes)}",
            f"{max(one.passes):,}",
            f"{1 - tokens / sum(one.passes):.1%}",
            f"{median:.3f}",
            f"{medians[0] / median:.2f}",
        )
    return made


def main(
    micro_batch: Annotated[int, typer.Option(help="Episodes of a padded pass.")] = 32,
    rounds: Annotated[int, typer.Option(help="Repetitions of each way.")] = 3,
) -> None:
    """Compare passes of so many episodes with passes of so many tokens, in one run."""
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder:
        for sizes in ("[8, 10, 12, 14, 16]", "[8]"):
            console.print(compare(folder, sizes, micro_batch, rounds))


if __name__ == "__main__":
    typer.run(main)
