"""Episodes of the next step while this one is trained: weights, losses, and what ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from miner.background_loop import BackgroundLoop
from miner.config.settings import Settings, load_settings
from miner.distributed.ranks import Ranks
from miner.inference.engines import Stray
from miner.inference.sampler import EngineLostError
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.training.rollouts import Rollouts
from miner.training.tasks import decode_task, planned_tasks, training_dataset
from tests.builders import build_trajectory


def settings(ahead: bool = True, *overrides: str) -> Settings:
    served = ("rollout.engine=vllm_server", "rollout.server=http://127.0.0.1:1")
    small = ("rollout.groups_per_step=2", "rollout.group_size=2", "optimizer.max_steps=3")
    wish = f"rollout.ahead={str(ahead).lower()}"
    return load_settings(None, [*served, *small, wish, *overrides], environ={})


def groups_of(wanted: Settings, step: int) -> list[Group]:
    return [Group(task, 2) for task in planned_tasks(wanted, step, 0, 1)]


class Engine:
    """Its weights may change only while no episode is under way."""

    def __init__(self) -> None:
        self.trained = self.held = self.recovered = 0
        self.lost: list[Stray] = []
        self.busy: Callable[[], bool] = lambda: False

    def freshen(self) -> None:
        if self.held != self.trained:
            assert not self.busy(), "weights were sent to an engine that samples"
            self.held = self.trained

    @contextmanager
    def playing(self) -> Iterator[None]:
        self.freshen()
        yield

    def strayed(self) -> Stray | None:
        return self.lost.pop() if self.lost else None

    def recover(self) -> None:
        self.recovered += 1
        self.freshen()


class Scheduler:
    """Plays groups; `slow` holds the numbers of plays that go on until `gate` is set.

    A member of the first group is lost in each play for which `loses` has an entry.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.slow: set[int] = set()
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.under_way = 0
        self.loses: list[Exception] = []
        self.played: list[tuple[int, list[Group]]] = []
        self.cleaned_up = False

    async def run(self, groups: Sequence[Group]) -> list[GroupResult]:
        self.under_way += 1
        self.played.append((self._engine.held, list(groups)))
        try:
            if len(self.played) in self.slow:
                self.waiting.set()
                await self.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cleaned_up = True
            raise
        finally:
            self.under_way -= 1
        results = []
        for group in groups:
            outcomes: list[Any] = [build_trajectory(task=group.task)] * group.size
            if self.loses:
                outcomes[0] = LostEpisode(group.task, self.loses.pop(), 1)
            results.append(GroupResult(group, tuple(outcomes)))
        return results

    async def open(self) -> None:
        self.gate.set()


class World:
    """`Rollouts` with doubles around it, and the trainer's state."""

    def __init__(self, loop: BackgroundLoop, wanted: Settings) -> None:
        self.wanted = wanted
        self.engine = Engine()
        self.scheduler = Scheduler(self.engine)
        self.engine.busy = lambda: bool(self.scheduler.under_way)
        parts: Any = (self.engine, loop, Ranks(), lambda: self.scheduler)
        self.rollouts = Rollouts(wanted, *parts)
        state = SimpleNamespace(global_step=0, max_steps=wanted.optimizer.max_steps)
        self.trainer: Any = SimpleNamespace(state=state, halvings=0)

    def step(self) -> list[GroupResult]:
        """What TRL does in a step."""
        self.rollouts.freshen()
        step = self.trainer.state.global_step
        results = self.rollouts.play(groups_of(self.wanted, step), self.trainer)
        self.engine.trained = self.trainer.state.global_step = step + 1
        return results

    @property
    def plays(self) -> list[tuple[int, int]]:
        """Of each play the engine's weights and the step whose groups they were."""
        return [
            (weights, next(s for s in range(3) if groups_of(self.wanted, s)[-1] in groups))
            for weights, groups in self.scheduler.played
        ]


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


@pytest.fixture
def world(loop: BackgroundLoop) -> World:
    return World(loop, settings())


def test_each_step_is_played_while_the_one_before_is_trained(
    world: World, loop: BackgroundLoop
) -> None:
    """With the weights that one began with; nothing is played that no step is left for."""
    world.scheduler.slow = {2}
    world.step()
    loop.run(world.scheduler.waiting.wait())
    loop.run(world.scheduler.open())
    for step in (1, 2):
        results = world.step()
        assert [result.group for result in results] == groups_of(world.wanted, step)
    world.rollouts.settle()
    assert world.plays == [(0, 0), (0, 1), (1, 2)]


def test_nothing_is_played_ahead_unless_it_is_wanted(loop: BackgroundLoop) -> None:
    world = World(loop, settings(ahead=False))
    for _ in range(3):
        world.step()
    assert world.plays == [(0, 0), (1, 1), (2, 2)]


def test_who_evaluates_gets_the_newest_weights_once_nobody_samples(
    world: World, loop: BackgroundLoop
) -> None:
    world.scheduler.slow = {3}
    world.step()
    world.step()
    loop.run(world.scheduler.waiting.wait())
    opened = loop.start(world.scheduler.open())
    world.rollouts.settle()
    assert not world.scheduler.under_way
    with world.engine.playing():
        assert world.engine.held == 2
    world.step()
    assert world.plays == [(0, 0), (0, 1), (1, 2)], "what was played ahead is still trained on"
    opened.result()


def test_after_a_return_to_older_weights_the_step_is_played_anew(world: World) -> None:
    world.step()
    world.step()
    world.trainer.halvings = 1
    results = world.step()
    assert [result.group for result in results] == groups_of(world.wanted, 2)
    assert world.plays == [(0, 0), (0, 1), (1, 2), (2, 2)]


def test_what_the_engine_lost_ahead_is_played_again_before_it_is_trained_on(
    world: World,
) -> None:
    world.step()
    world.rollouts.settle()
    world.scheduler.loses = [EngineLostError("gone")]
    world.step()
    world.engine.lost = [Stray("it was gone", noticed=True)]
    results = world.step()
    assert world.engine.recovered == 1
    assert not any(result.lost for result in results)
    weights, again = world.scheduler.played[-1]
    assert (weights, again) == (2, [Group(groups_of(world.wanted, 2)[0].task, 1)])


def test_who_gives_it_up_goes_on_once_it_has_cleaned_up(world: World, loop: BackgroundLoop) -> None:
    world.scheduler.slow = {2}
    world.step()
    loop.run(world.scheduler.waiting.wait())
    world.rollouts.drop()
    assert world.scheduler.cleaned_up
    world.rollouts.settle()
    world.rollouts.drop()


@pytest.mark.parametrize("count", [1, 2])
def test_the_ranks_play_what_trl_will_ask_them_for(count: int) -> None:
    wanted = settings(True, "rollout.groups_per_step=4")
    planned = [
        task
        for step in range(3)
        for rank in range(count)
        for task in planned_tasks(wanted, step, rank, count)
    ]
    assert planned == [decode_task(prompt) for prompt in training_dataset(wanted)["prompt"]]
