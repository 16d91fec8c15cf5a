"""What learning from rows costs, in passes by a budget of tokens: `python -m benchmarks.rows`.

A step's 128 episodes are real games, tokenised as the demo's model sees them, played by a random
legal policy. The network has the demo's size; its weights are untrained, which a pass's time does
not depend on. Two ways of learning, forward and backward and without the optimizer's update, take
turns, and the ratio of their medians is what the benchmark is for:

* TRL's: each episode is one row, and a pass so many of them, padded to the longest;
* by tokens: the same rows in passes of at most as many tokens as TRL's largest had.
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
from trl import GRPOTrainer

from miner.config.settings import Settings, load_settings
from miner.distributed.ranks import Ranks
from miner.environments.builtin import BuiltinSource
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.tiny_model.build import base_recipe_for, recipe_tokenizer
from miner.tiny_model.network import build_network
from miner.training.packed_trainer import rows_of
from miner.training.rollout_function import RolloutFunction, episode_reward
from miner.training.tasks import training_dataset
from miner.training.trainer import EpisodeTrainer, grpo_config

OPTION = re.compile(r"(\d+) ->")
Columns = dict[str, list[Any]]


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
    """A trainer that holds the rows of one step; seconds and tokens of learning from them.

    Attributes:
        rows_per_pass: of TRL's passes; None for passes by tokens.
        passes: tokens of each pass of the last round, padding included.
    """

    name: str
    trainer: EpisodeTrainer
    rows: int
    tokens: int
    rows_per_pass: int | None = None
    seconds: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    def learn(self) -> None:
        """All forward and backward passes of the step, once."""
        self.passes.clear()
        batch: dict[str, Any] = (self.trainer._buffered_inputs or [])[0]
        began = time.perf_counter()
        if self.rows_per_pass is None:
            self._backward(self.trainer.compute_loss(self.trainer.model, batch))
        else:
            for rows in torch.arange(self.rows).split(self.rows_per_pass):
                part = rows_of(batch, rows.tolist())
                self._backward(GRPOTrainer.compute_loss(self.trainer, self.trainer.model, part))
        self.seconds.append(time.perf_counter() - began)
        self.trainer.model.zero_grad()

    def _backward(self, loss: torch.Tensor) -> None:
        self.trainer.accelerator.backward(loss)


def played(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> Columns:
    """The columns of one step's episodes, as TRL gets them."""
    renderer = ChatRenderer(tokenizer)
    params = EpisodeParams(
        SamplingParams(settings.rollout.max_reply_tokens), settings.rollout.episode_limit
    )
    scheduler = Scheduler(BuiltinSource(), RandomSampler(tokenizer), renderer, params)
    rollout = RolloutFunction(
        lambda groups: asyncio.run(scheduler.run(groups)),
        settings.reward,
        renderer.eos_token_id,
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
    name: str,
    settings: Settings,
    tokenizer: PreTrainedTokenizerBase,
    columns: Columns,
    rows_per_pass: int | None = None,
) -> Way:
    """The trainer of these settings, after the rollout and one round to warm up."""
    recipe = base_recipe_for(settings.environment.deck_sizes)
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
    made = Way(name, trainer, len(columns["prompt_ids"]), sum(lengths(columns)), rows_per_pass)

    def note(module: Any, args: Any, kwargs: Any) -> None:
        made.passes.append(kwargs["input_ids"].numel())

    trainer.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    made.learn()
    made.seconds.clear()
    return made


def lengths(columns: Columns) -> list[int]:
    """Tokens of each row."""
    rows = zip(columns["prompt_ids"], columns["completion_ids"], strict=True)
    return [len(prompt) + len(completion) for prompt, completion in rows]


def compare(folder: str, sizes: str, episodes: int, rounds: int) -> Table:
    """All ways of learning from games of these deck sizes."""
    overrides = [f"run_dir={folder}", f"environment.deck_sizes={sizes}", "optimizer.max_steps=1"]
    overrides.append("rollout.max_episode_tokens=4096")
    settings = load_settings(None, overrides, environ={})
    tokenizer = recipe_tokenizer(base_recipe_for(settings.environment.deck_sizes))
    whole = played(settings, tokenizer)
    trls = way(f"TRL's, {episodes} rows", settings, tokenizer, whole, episodes)
    budget = max(trls.passes)
    packed = load_settings(None, [*overrides, f"optimizer.micro_batch_tokens={budget}"], environ={})
    ways = [trls, way(f"{budget:,} tokens", packed, tokenizer, whole)]
    for _ in range(rounds):
        for one in ways:
            one.learn()
    shortest, longest = min(lengths(whole)), max(lengths(whole))
    title = f"decks {sizes}, 128 episodes of {shortest:,} to {longest:,} tokens"
    return table(title, ways)


def table(title: str, ways: list[Way]) -> Table:
    """What each way learns from, its passes, and its time next to the first's."""
    headings = ("a pass", "rows", "tokens", "passes", "padding", "seconds", "time")
    made = Table(*headings, title=title)
    medians = [statistics.median(one.seconds) for one in ways]
    for one, median in zip(ways, medians, strict=True):
        made.add_row(
            one.name,
            f"{one.rows:,}",
            f"{one.tokens:,}",
            f"{len(one.passes)}",
            f"{1 - one.tokens / sum(one.passes):.1%}",
            f"{median:.3f}",
            f"{median / medians[0]:.2f}",
        )
    return made


def main(
    episodes: Annotated[int, typer.Option(help="Episodes of one of TRL's passes.")] = 32,
    rounds: Annotated[int, typer.Option(help="Repetitions of each way.")] = 3,
) -> None:
    """Compare TRL's passes of whole episodes with passes by tokens."""
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        for sizes in ("[8, 10, 12, 14, 16]", "[8]"):
            console.print(compare(folder, sizes, episodes, rounds))


if __name__ == "__main__":
    typer.run(main)
