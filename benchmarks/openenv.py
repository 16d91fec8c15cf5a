"""64 sessions at once on one OpenEnv server: `python -m benchmarks.openenv`.

A step's episodes, more of them than sessions, are played over and over on the same 64 places.

The server is the real one (`make setup-openenv`). Episodes differ in how many turns they have
(drawn by the seed) and replies in how long they are; each step takes the server 10 ms, as a small
tool would. The sampler takes the time that an engine would take and no CPU (`benchmarks.rollouts`).
Rows, in one run:

* ours: every episode asks as soon as its environment has answered;
* lock-step: batches of 64; no episode begins its next turn before all have finished this one;
* lock-step, one by one: environments are stepped one after another besides, which is what a loop
  over `client.step(...)` does, and TRL's own loop with tools that are plain functions.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from benchmarks.rollouts import CostModelEngine, LockStepSampler, Request, Row, table
from miner.config.channel_settings import OpenEnvSettings
from miner.environments import Environment, EpisodeTask, Observation, Transition
from miner.environments.openenv import OpenEnvSource, open_openenv
from miner.inference.sampler import Sample, Sampler, SamplingParams
from miner.rollout.episode import EpisodeParams
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.rollout.stats import RolloutStats
from miner.tiny_model.tokenizer import build_tokenizer

TASK = re.compile(r"Task \d+")
APP = Path(__file__).parent / "servers" / "talk.py"


class Talker:
    """`Sampler` with the engine's timing; the length of a reply depends on task and turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mean: int, longest: int) -> None:
        self._tokenizer = tokenizer
        self._filler = tokenizer("z")["input_ids"][0]
        self._eos = tokenizer.eos_token_id
        self._mean, self._longest = mean, longest
        self._engine = CostModelEngine(256)
        self._tasks: dict[int, str] = {}
        self._turns: dict[int, int] = {}

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """See `Sampler`."""
        assert session is not None
        if session not in self._tasks:
            text = self._tokenizer.decode(list(prompt_ids))
            self._tasks[session] = TASK.search(text)[0]
        turn = self._turns[session] = self._turns.get(session, -1) + 1
        chance = random.Random(f"{self._tasks[session]}/{turn}")
        drawn = round(chance.expovariate(1 / self._mean))
        length = min(self._longest, max(2, drawn))
        await self._engine.run(Request(20, length))
        return Sample((*[self._filler] * (length - 1), self._eos), (-1.0,) * length, "stop")

    async def end_session(self, session: int) -> None:
        """See `Sampler`."""


class OneByOne:
    """`EnvironmentSource` whose environments are stepped one after another."""

    def __init__(self, source: OpenEnvSource) -> None:
        self._source = source
        self._lock = asyncio.Lock()
        self.name, self.capacity = source.name, source.capacity
        self.applied_rate, self.servers = None, source.servers

    def open(self, avoid: Collection[str] = ()) -> Environment:
        """See `EnvironmentSource`."""
        return _Queued(self._source.open(avoid), self._lock)

    async def complaint(self, server: str) -> str:
        """See `EnvironmentSource`."""
        return await self._source.complaint(server)

    async def close(self) -> None:
        """The source is the caller's."""


class _Queued:
    def __init__(self, inner: Environment, lock: asyncio.Lock) -> None:
        self._inner, self._lock = inner, lock
        self.server = inner.server

    async def reset(self, task: EpisodeTask) -> Observation:
        async with self._lock:
            return await self._inner.reset(task)

    async def step(self, text: str) -> Transition:
        async with self._lock:
            return await self._inner.step(text)

    async def close(self) -> None:
        await self._inner.close()


async def play(
    name: str,
    source: OpenEnvSource | OneByOne,
    samplers: Iterator[Sampler],
    renderer: ChatRenderer,
    batches: Sequence[Sequence[int]],
) -> Row:
    """Episodes of these seeds, a batch after the other, each with the next sampler."""
    params = EpisodeParams(SamplingParams(4096), 1_000_000)
    tokens = 0
    began = time.perf_counter()
    for batch, sampler in zip(batches, samplers, strict=False):
        scheduler = Scheduler(source, sampler, renderer, params)
        groups = [Group(EpisodeTask("openenv", seed, seed, "none"), 1) for seed in batch]
        stats = RolloutStats.of(await scheduler.run(groups))
        if stats.lost or stats.episodes != len(batch):
            raise RuntimeError(f"{stats.lost} of {len(batch)} episodes were lost")
        tokens += stats.sampled_tokens
    return Row(name, sum(map(len, batches)), tokens, time.perf_counter() - began)


async def compare(count: int, sessions: int, mean: int, longest: int) -> list[Row]:
    """All rows, one after another, on one server."""
    tokenizer = build_tokenizer([], merges=0)
    renderer = ChatRenderer(tokenizer)
    settings = OpenEnvSettings(app=str(APP), max_turns=100, sessions=sessions)
    source = await open_openenv((), settings)
    talkers = iter(lambda: Talker(tokenizer, mean, longest), None)
    whole = [range(count)]
    batches = [range(first, min(first + sessions, count)) for first in range(0, count, sessions)]

    def in_step() -> Iterator[Sampler]:
        return (LockStepSampler(next(talkers), len(batch)) for batch in batches)

    try:
        await play("", source, talkers, renderer, [range(4)])
        one_by_one = OneByOne(source)
        return [
            await play("ours", source, talkers, renderer, whole),
            await play("lock-step", source, in_step(), renderer, batches),
            await play("lock-step, one by one", one_by_one, in_step(), renderer, batches),
        ]
    finally:
        await source.close()


def main(
    episodes: Annotated[int, typer.Option(help="Episodes of a step.")] = 256,
    sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 64,
    mean_reply: Annotated[int, typer.Option(help="Mean tokens of a reply.")] = 24,
    longest_reply: Annotated[int, typer.Option(help="Most tokens of a reply.")] = 192,
) -> None:
    """Compare ways of playing on one server, in one run."""
    rows = asyncio.run(compare(episodes, sessions, mean_reply, longest_reply))
    title = (
        f"{sessions} sessions, replies of {mean_reply} tokens on average, at most {longest_reply}"
    )
    Console(width=100).print(table(title, rows))


if __name__ == "__main__":
    typer.run(main)
