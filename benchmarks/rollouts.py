"""How busy a rollout keeps its engine: `python -m benchmarks.rollouts`.

64 episodes of 12-card Goofspiel are played against a real mock environment server over loopback,
with a sampler that takes the time a vLLM-like engine would take and no CPU: each decoding step
costs `a + b * running sequences + c * new prompt tokens`, and every running sequence gets one token
from it. What is measured is everything around the engine: scheduling, rendering, HTTP.

The constants are a model, of the order that a 7B model may have on a large GPU; nobody measured
them here. The ratios between the rows, taken in one run, are what the benchmark is for:

* ours: every episode asks as soon as its environment has answered;
* lock-step: no episode begins its next turn before all have finished this one;
* serialized: one sequence at a time (fewer episodes; its speed does not depend on how many);
* the engine alone: the same requests from conversations that answer at once.

Tokens are bytes of text, about four times what a real tokenizer makes of it: our own share of the
work is rather overstated.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from miner.environments import EpisodeTask
from miner.environments.step import StepSource
from miner.inference.sampler import Sample, Sampler, SamplingParams
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.rollout.stats import RolloutStats
from miner.tiny_model.tokenizer import build_tokenizer
from mock_env_server.running import running_server

STEP_S, ROW_S, PREFILL_S = 6e-3, 4e-5, 2e-6
"""a, b and c: per step, per running sequence, per new prompt token."""

GROUPS, GROUP_SIZE, SERIAL_EPISODES = 8, 8, 3
TASK_OF_12_CARDS = 2
OPTION = re.compile(r"(\d+) ->")
ReplyLength = Callable[[int, int], int]
"""(session, turn) -> tokens of the reply, the same in every row of the table."""


@dataclass(eq=False)
class Request:
    """One prompt: its new tokens, the tokens still to come, and who waits for them."""

    new_tokens: int
    left: int
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.Future())


class CostModelEngine:
    """Continuous batching in real time: requests join between steps, `width` run at once."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._stepping: asyncio.Task[None] | None = None

    async def run(self, request: Request) -> None:
        """Return when all tokens of `request` have been made."""
        self._waiting.append(request)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_until_idle())
        await request.done

    async def _step_until_idle(self) -> None:
        due = time.perf_counter()
        while self._waiting or self._running:
            room = self._width - len(self._running)
            started, self._waiting = self._waiting[:room], self._waiting[room:]
            self._running += started
            prefill = sum(request.new_tokens for request in started)
            due += STEP_S + ROW_S * len(self._running) + PREFILL_S * prefill
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due = max(due, time.perf_counter() - STEP_S)  # a late loop must not run ahead later
            for request in self._running:
                request.left -= 1
                if not request.left:
                    request.done.set_result(None)
            self._running = [request for request in self._running if request.left]


class CostModelSampler:
    """`Sampler` with the engine's timing; it bids the last card listed.

    Attributes:
        asked: (new prompt tokens, reply tokens) of each session's turns; sessions are numbered
            from 0 on as they come, so that each row of the table draws the same lengths.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, length: ReplyLength, *, width: int = 256
    ) -> None:
        self._tokenizer = tokenizer
        self._filler = tokenizer("z")["input_ids"][0]
        self._length = length
        self._engine = CostModelEngine(width)
        self._numbers: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self.asked: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """See `Sampler`."""
        assert session is not None
        number = self._numbers.setdefault(session, len(self._numbers))
        tail = self._tokenizer.decode(list(prompt_ids[-200:]))
        action = self._tokenizer(f" {OPTION.findall(tail)[-1]}")["input_ids"]
        length = max(len(action) + 2, self._length(number, len(self.asked[number])))
        padding = [self._filler] * (length - len(action) - 1)
        ids = (*padding, *action, self._tokenizer.eos_token_id)
        new_tokens = len(prompt_ids) - self._held.get(number, 0)
        self._held[number] = len(prompt_ids) + len(ids)
        self.asked[number].append((new_tokens, len(ids)))
        await self._engine.run(Request(new_tokens, len(ids)))
        return Sample(ids, (-1.0,) * len(ids), "stop")

    async def end_session(self, session: int) -> None:
        """See `Sampler`."""
        self._held.pop(self._numbers.get(session, -1), None)


class LockStepSampler:
    """Holds every reply back until all episodes that are still being played have theirs."""

    def __init__(self, inner: Sampler, episodes: int) -> None:
        self._inner = inner
        self._playing = episodes
        self._asking = 0
        self._all_ask = asyncio.Event()
        self._answered = 0
        self._all_answered = asyncio.Event()

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """See `Sampler`."""
        ask, answered = self._all_ask, self._all_answered
        self._asking += 1
        self._look()
        await ask.wait()
        sample = await self._inner.sample(prompt_ids, params, session=session)
        self._answered -= 1
        if not self._answered:
            answered.set()
        await answered.wait()
        return sample

    async def end_session(self, session: int) -> None:
        """See `Sampler`."""
        self._playing -= 1
        self._look()
        await self._inner.end_session(session)

    def _look(self) -> None:
        """Start the turn if everybody has asked for it."""
        if self._asking and self._asking == self._playing:
            self._asking, self._answered = 0, self._playing
            self._all_ask.set()
            self._all_ask, self._all_answered = asyncio.Event(), asyncio.Event()


@dataclass
class Row:
    """One line of the table."""

    name: str
    episodes: int
    sampled_tokens: int
    seconds: float

    @property
    def speed(self) -> float:
        """Sampled tokens per second."""
        return self.sampled_tokens / self.seconds


async def play(url: str, renderer: ChatRenderer, sampler: Sampler, groups: int, size: int) -> Row:
    """A rollout over the environment server's /reset and /step."""
    source = StepSource([url])
    params = EpisodeParams(SamplingParams(256), 65_536)
    scheduler = Scheduler(source, sampled(sampler, renderer, params))
    seeds = range(100, 100 + groups)
    tasks = [EpisodeTask("goofspiel", TASK_OF_12_CARDS, seed, "random") for seed in seeds]
    began = time.perf_counter()
    stats = RolloutStats.of(await scheduler.run([Group(task, size) for task in tasks]))
    seconds = time.perf_counter() - began
    await source.close()
    if stats.lost_episodes or stats.invalid_replies:
        raise RuntimeError(f"episodes were lost or replies invalid: {stats}")
    return Row("", stats.episodes, stats.tokens, seconds)


async def replay(asked: dict[int, list[tuple[int, int]]]) -> Row:
    """The same requests, without environment, tokenizer or scheduler."""
    engine = CostModelEngine(256)

    async def converse(turns: list[tuple[int, int]]) -> None:
        for new_tokens, length in turns:
            await engine.run(Request(new_tokens, length))

    began = time.perf_counter()
    await asyncio.gather(*map(converse, asked.values()))
    tokens = sum(length for turns in asked.values() for _, length in turns)
    return Row("", len(asked), tokens, time.perf_counter() - began)


async def compare(url: str, length: ReplyLength) -> list[Row]:
    """All rows, one after another."""
    tokenizer = build_tokenizer([], merges=0)
    renderer = ChatRenderer(tokenizer)

    def fresh(width: int = 256) -> CostModelSampler:
        return CostModelSampler(tokenizer, length, width=width)

    await play(url, renderer, fresh(), 2, 2)  # connections, caches
    ours_sampler = fresh()
    ours = await play(url, renderer, ours_sampler, GROUPS, GROUP_SIZE)
    held_back = LockStepSampler(fresh(), GROUPS * GROUP_SIZE)
    lock_step = await play(url, renderer, held_back, GROUPS, GROUP_SIZE)
    serial = await play(url, renderer, fresh(1), 1, SERIAL_EPISODES)
    alone = await replay(ours_sampler.asked)
    names = ("ours", "lock-step turns", "serialized", "the engine alone")
    rows = [ours, lock_step, serial, alone]
    for row, name in zip(rows, names, strict=True):
        row.name = name
    return rows


def table(title: str, rows: list[Row]) -> Table:
    """Speeds, and how many times faster ours is than each."""
    made = Table("", "episodes", "tokens", "seconds", "tokens/s", "ours / this", title=title)
    for row in rows:
        made.add_row(
            row.name,
            f"{row.episodes}",
            f"{row.sampled_tokens:,}",
            f"{row.seconds:.2f}",
            f"{row.speed:,.0f}",
            f"{rows[0].speed / row.speed:.2f}",
        )
    return made


def main(
    mean_reply: Annotated[int, typer.Option(help="Mean length of a reply in tokens.")] = 24,
) -> None:
    """Compare ways of running a rollout, in one run."""

    longest = 4 * mean_reply

    def drawn(session: int, turn: int) -> random.Random:
        return random.Random(f"{session}/{turn}")

    scenarios: dict[str, ReplyLength] = {
        f"exponential lengths, mean {mean_reply}, at most {longest}": lambda session, turn: min(
            longest, round(drawn(session, turn).expovariate(1 / mean_reply))
        ),
        f"uniform lengths, 4 to {2 * mean_reply - 4}": lambda session, turn: drawn(
            session, turn
        ).randint(4, 2 * mean_reply - 4),
        f"equal lengths, {mean_reply}": lambda session, turn: mean_reply,
    }
    console = Console(width=100)
    with running_server("faithful") as server:
        for title, length in scenarios.items():
            console.print(table(title, asyncio.run(compare(server.base_url, length))))


if __name__ == "__main__":
    typer.run(main)
