"""Servers that go away and come back, by a clock that only pauses move."""

import asyncio
from collections.abc import Callable

import pytest

from miner.environments.outages import Outages, Stopwatch

A, B, C = "http://a:1", "http://b:1", "http://c:1"


class World:
    """Servers that are `there` or not, and what happens at each pause."""

    def __init__(self, *servers: str) -> None:
        self.servers = servers
        self.there = set(servers)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.pauses: list[float] = []
        self.signs_of_life = 0
        self.patience = 1000.0
        self.now = 0.0
        self.at_pause: Callable[[int], None] = lambda number: None
        self.dark = Stopwatch(lambda: self.now)
        self.outages = Outages(
            self,  # type: ignore[arg-type]
            self.dark,
            patience=lambda: self.patience - self.now,
            note=self.said.append,
            waiting=self._sign,
            sleep=self._sleep,
        )

    async def health_error(self, server: str) -> str:
        await asyncio.sleep(0)
        self.asked.append(server)
        return "" if server in self.there else "refused"

    async def waited_out(self, *servers: str) -> list[bool]:
        return await asyncio.gather(*map(self.outages.waited_out, servers))

    def back_at_pause(self, number: int, server: str) -> None:
        self.at_pause = lambda now: self.there.add(server) if now == number else None

    def _sign(self) -> None:
        self.signs_of_life += 1

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)
        self.at_pause(len(self.pauses))


async def test_a_server_that_answers_has_no_outage() -> None:
    world = World(A)
    assert await world.waited_out(A, A) == [False, False]
    assert (world.said, world.pauses) == ([], [])


async def test_a_failure_without_a_server_is_not_an_outage() -> None:
    assert await World(A).waited_out("", "builtin") == [False, False]


async def test_many_episodes_wait_for_the_only_server_as_one() -> None:
    world = World(A)
    world.there.clear()
    world.back_at_pause(6, A)
    assert await world.waited_out(*[A] * 48) == [True] * 48
    assert world.pauses == [1, 2, 4, 8, 15, 15]
    assert len(world.asked) == 7
    assert world.signs_of_life == 6
    assert world.said == [
        f"no environment server answers ({A}: refused): waiting up to 0:16:40 for one, to play its "
        "episodes again",
        f"environment server {A} answers again after 0:00:45: the episodes are played again",
    ]
    assert world.dark.seconds() == 45


async def test_pauses_begin_again_with_each_outage() -> None:
    world = World(A)
    for _ in range(2):
        world.there.clear()
        world.back_at_pause(len(world.pauses) + 3, A)
        assert await world.waited_out(A) == [True]
    assert world.pauses == [1, 2, 4] * 2
    assert world.dark.seconds() == 14
    assert len(world.said) == 4


async def test_what_outlasts_patience_is_lost() -> None:
    world = World(A, B)
    world.there.clear()
    world.patience = 20.0
    assert await world.waited_out(A, B, A) == [False] * 3
    assert world.pauses == [1, 2, 4, 8, 15]
    assert world.dark.seconds() == 30
    assert await world.waited_out(A) == [False]  # nor does anything wait again
    assert len(world.pauses) == 5
    assert len(world.said) == 1


async def test_one_of_several_servers_stays_away() -> None:
    world = World(A, B, C)
    world.there.discard(B)
    assert await world.waited_out(B, B, A) == [True, True, False]
    assert await world.waited_out(B) == [True]
    await world.outages.look_again()
    assert world.pauses == []
    assert world.said == [
        f"environment server {B} (refused) does not answer: episodes go to the other 2 of "
        "3 environment servers"
    ]
    world.there.add(B)
    await world.outages.look_again()
    assert world.said[1:] == [f"environment server {B} answers again"]
    asked = len(world.asked)
    await world.outages.look_again()
    assert len(world.asked) == asked  # all is well: nobody is asked


async def test_all_go_and_one_stays_away() -> None:
    world = World(A, B)
    world.there.clear()
    world.back_at_pause(2, A)
    assert await world.waited_out(A, B) == [True, True]
    assert await world.waited_out(B) == [True]
    assert len(world.said) == 2
    assert world.said[1].startswith(f"environment server {A} answers again after 0:00:03")
    assert world.pauses == [1, 2]


async def test_a_question_that_fails_for_another_reason_is_not_swallowed() -> None:
    world = World(A)

    async def health_error(server: str) -> str:
        raise ZeroDivisionError

    world.health_error = health_error  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await world.outages.waited_out(A)
