"""The sampling temperature that fits a base: the highest one at which it still answers.

A base that answers every question when asked greedily may answer few of them at temperature 1,
where the many unlikely tokens of a large vocabulary add up. Its episodes are then lost alike, and a
group teaches nothing but the penalty. So a few games are sampled before the first step, and the
temperature is lowered as far as it takes. It is the trained distribution's as well: sampler and
trainer both divide the logits by it.

Invariants: a run has one temperature from its first step to its last, over all restarts; games of
the held-out or graded lists are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from miner.config.run_files import write_atomically
from miner.environments import InfrastructureError

TEMPERATURE_FILE = "temperature.json"

LADDER = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Temperatures that are tried, relative to the one that is set; bisection asks three of them."""

GAMES = 4
"""First games of the training stream, played at each: 28 to 84 replies of 8-card games."""


class Tried(BaseModel):
    """What a temperature gave: all replies, and those without a legal action.

    A reply that was cut off after it named one is penalised, but its game goes on, and is no worse
    to learn from.
    """

    model_config = ConfigDict(frozen=True)

    temperature: float
    replies: int
    invalid: int

    @property
    def share(self) -> float:
        """Of the replies that were invalid."""
        return self.invalid / self.replies

    def __str__(self) -> str:
        return f"at {self.temperature:g} {self.invalid} of {self.replies}"


class FittedTemperature(BaseModel):
    """The temperature of a run, and how it was found (`temperature.json`)."""

    model_config = ConfigDict(frozen=True)

    temperature: float
    most_invalid: float
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        seen = ", ".join(map(str, sorted(self.tried, key=lambda each: -each.temperature)))
        fits = any(
            each.temperature == self.temperature and each.share <= self.most_invalid
            for each in self.tried
        )
        verdict = "" if fits else "; none is low enough, that is the lowest one"
        return (
            f"temperature {self.temperature:g} (invalid replies of the base: {seen}; "
            f"at most {self.most_invalid:.0%} wanted{verdict})"
        )

    def write(self, run_dir: Path) -> None:
        """Keep it for restarts, the report and whoever asks."""
        write_atomically(run_dir / TEMPERATURE_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, run_dir: Path) -> FittedTemperature | None:
        """What an earlier process of this run has found, None if none did."""
        try:
            return cls.model_validate_json((run_dir / TEMPERATURE_FILE).read_bytes())
        except FileNotFoundError:
            return None


TryAt = Callable[[float], Tried]
"""Plays `GAMES` games at a temperature; the same result on every rank."""


def fit_temperature(highest: float, most_invalid: float, try_at: TryAt) -> FittedTemperature:
    """The highest rung of the ladder with few enough invalid replies, else the lowest rung.

    Bisection: at a higher temperature more replies are invalid, but for chance.

    Raises: `InfrastructureError` where not one game could be played.
    """
    rungs = [round(highest * rung, 3) for rung in LADDER]
    tried = []
    first, beyond = 0, len(rungs)  # the rung that is looked for is one of these, or there is none
    while first < beyond:
        middle = (first + beyond) // 2
        found = try_at(rungs[middle])
        if not found.replies:
            raise InfrastructureError(
                f"none of {GAMES} games could be played at temperature {rungs[middle]:g} to find "
                "the one that fits the base: check the environment servers, or set "
                "rollout.temperature and leave rollout.most_invalid out"
            )
        tried.append(found)
        if found.share <= most_invalid:
            beyond = middle
        else:
            first = middle + 1
    return FittedTemperature(
        temperature=rungs[min(first, len(rungs) - 1)],
        most_invalid=most_invalid,
        tried=tuple(tried),
    )
