"""The sampling temperature that fits a base: the highest at which its games are not forfeited.

A base that answers every question when asked greedily may answer few of them at temperature 1,
where the many unlikely tokens of a large vocabulary add up. Its episodes are then lost alike, and a
group teaches nothing but the penalty. So games are sampled before the first step, and the
temperature is lowered as far as it takes. It is the trained distribution's as well: sampler and
trainer both divide the logits by it.

Invariants: a run has one temperature from its first step to its last, over all restarts; games of
the held-out or graded lists are never looked at; every kind of game counts equally often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from miner.config.run_files import write_atomically
from miner.environments import InfrastructureError

TEMPERATURE_FILE = "temperature.json"

LADDER = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Temperatures, relative to the one that is set: the first is tried, then three by bisection."""

LEAST_EPISODES = 8
"""Of a round, which has every kind of game equally often."""

MOST_EPISODES = 240
"""At one temperature; then the share itself decides."""

ERROR = 0.05
"""Of a decision, on either side of the undecided zone."""

TIME_SHARE = 0.03
"""Of the training time, for all rounds but the first, which is always played to its end."""


@dataclass(frozen=True)
class SequentialTest:
    """Decides whether a share is at most `limit` after as few episodes as `error` allows.

    Wald's sequential probability ratio test (1945) of `low` against `high`, a third to either side
    of the limit (or of what is left above it). A share below `low` is taken for too high, and one
    above `high` for low enough, with probability `error` at most: by Ville's inequality for the
    likelihood ratio, however often it is looked at, and by the inequality of arithmetic and
    geometric means for kinds of games with different shares, of which the mean then counts.
    In between either answer is right.
    """

    limit: float
    error: float = ERROR

    @property
    def low(self) -> float:
        """Largest share that is called too high with probability `error` at most."""
        return self.limit - min(self.limit, 1.0 - self.limit) / 3

    @property
    def high(self) -> float:
        """Smallest share that is called low enough with probability `error` at most."""
        return self.limit + min(self.limit, 1.0 - self.limit) / 3

    def fits(self, episodes: int, forfeited: int) -> bool | None:
        """Return whether the share is low enough; None while that is open."""
        ratio = forfeited * math.log(self.high / self.low)
        ratio += (episodes - forfeited) * math.log((1.0 - self.high) / (1.0 - self.low))
        bound = math.log(1.0 / self.error)
        return None if -bound < ratio < bound else ratio < 0


class Tried(BaseModel):
    """Result of a temperature: episodes played, and those that ended by an invalid reply.

    An invalid reply after which the game continues is penalised, and is no worse to learn from.

    Attributes:
        fits: true if the share is low enough: by the test, or by the share itself where time or
            `MOST_EPISODES` ended it before.
    """

    model_config = ConfigDict(frozen=True)

    temperature: float
    episodes: int
    forfeited: int
    fits: bool

    def __str__(self) -> str:
        return f"at {self.temperature:g} {self.forfeited} of {self.episodes}"


class FittedTemperature(BaseModel):
    """The temperature of a run, and how it was found (`temperature.json`)."""

    model_config = ConfigDict(frozen=True)

    temperature: float
    most_invalid: float
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        seen = ", ".join(map(str, sorted(self.tried, key=lambda each: -each.temperature)))
        own = next((each for each in self.tried if each.temperature == self.temperature), None)
        verdict = "; there was no time to try it"
        if own is not None:
            verdict = "" if own.fits else "; none is low enough, that is the lowest one"
        return (
            f"temperature {self.temperature:g} (games that the base ended by an invalid reply: "
            f"{seen}; at most {self.most_invalid:.0%} wanted{verdict})"
        )

    def write(self, run_dir: Path) -> None:
        """Keep it for restarts and the report."""
        write_atomically(run_dir / TEMPERATURE_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, run_dir: Path) -> FittedTemperature | None:
        """Result of an earlier process of this run, None without one."""
        try:
            return cls.model_validate_json((run_dir / TEMPERATURE_FILE).read_bytes())
        except FileNotFoundError:
            return None


PlayRound = Callable[[float, int], tuple[int, int]]
"""Plays round N at a temperature; episodes that were played, and those of them that ended by an
invalid reply. The same result on every rank."""


class TimeForRounds:
    """Room for another round within `TIME_SHARE`, by the longest round so far.

    The first round starts engines and compiles. It is no part of the share, and stands for the
    others only until there is a second one.

    Args:
        seconds: of training in all.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._left = TIME_SHARE * seconds
        self._rounds = 0
        self._longest = 0.0

    def __call__(self) -> bool:
        """Return whether another round ends in time; called after each round."""
        took = self._clock() - self._last
        self._last += took
        if self._rounds:
            self._left -= took
        self._longest = max(self._longest, took) if self._rounds > 1 else took
        self._rounds += 1
        return self._longest <= self._left


def round_size(kinds: int) -> int:
    """Episodes of a round: each of `kinds` equally often."""
    return kinds * math.ceil(LEAST_EPISODES / kinds)


def fit_temperature(
    highest: float, most_invalid: float, play: PlayRound, room: Callable[[], bool] = lambda: True
) -> FittedTemperature:
    """The highest rung of the ladder at which few enough games end by an invalid reply.

    The highest rung first, which most bases keep, then bisection: at a higher temperature more
    replies are invalid. The lowest rung where none fits; without time for another rung, the highest
    known to fit, or the next that would be tried.

    Args:
        highest: the ladder's first temperature.
        most_invalid: largest share of episodes that may end by an invalid reply.
        room: true if there is time for another round; the same on every rank.

    Raises: `InfrastructureError` where not one game could be played.
    """
    test = SequentialTest(most_invalid)
    rungs = [round(highest * rung, 3) for rung in LADDER]
    tried: list[Tried] = []
    first, beyond = 0, len(rungs)  # the wanted rung is one of these, or none is
    in_time = True
    while first < beyond and in_time:
        middle = (first + beyond) // 2 if tried else 0
        found, in_time = _try(test, rungs[middle], play, room)
        tried.append(found)
        if found.fits:
            beyond = middle
        else:
            first = middle + 1
    if first < beyond and beyond == len(rungs):
        beyond = (first + beyond) // 2
    return FittedTemperature(
        temperature=rungs[min(beyond, len(rungs) - 1)],
        most_invalid=most_invalid,
        tried=tuple(tried),
    )


def _try(
    test: SequentialTest, temperature: float, play: PlayRound, room: Callable[[], bool]
) -> tuple[Tried, bool]:
    """Rounds at a temperature until the test has decided, and whether there is time for more."""
    episodes = forfeited = number = 0
    fits = None
    in_time = True
    while fits is None and in_time and episodes < MOST_EPISODES:
        played, ended = play(temperature, number)
        episodes, forfeited, number = episodes + played, forfeited + ended, number + 1
        if not episodes:
            raise InfrastructureError(
                f"not one game could be played at temperature {temperature:g} to find the one "
                "that fits the base: check the environment servers, or set rollout.temperature "
                "and leave rollout.most_invalid out"
            )
        fits = test.fits(episodes, forfeited)
        in_time = room()
    if fits is None:
        fits = forfeited <= test.limit * episodes
    return Tried(temperature=temperature, episodes=episodes, forfeited=forfeited, fits=fits), (
        in_time
    )
