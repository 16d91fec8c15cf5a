"""Groups of episodes that are comparable: all members play the same task.

Invariant: a result has exactly one outcome per member, a trajectory or a typed failure; nothing is
put in the place of a lost episode, so a baseline over `trajectories` never sees an invented score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from miner.environments.base import EpisodeTask
from miner.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Group:
    """`size` episodes of one task."""

    task: EpisodeTask
    size: int


@dataclass(frozen=True, slots=True)
class LostEpisode:
    """An episode that could not be finished: the last attempt's error after `attempts` of them."""

    task: EpisodeTask
    error: Exception
    attempts: int


Outcome = Trajectory | LostEpisode


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group.

    Attributes:
        group: the group that was played.
        outcomes: one per member, in the members' order.
        worths: what the finished members are worth to training, in no order.
        replaced: the group without variance that this one was played in place of.
    """

    group: Group
    outcomes: tuple[Outcome, ...]
    worths: tuple[float, ...]
    replaced: GroupResult | None = None

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The finished members."""
        return tuple(o for o in self.outcomes if isinstance(o, Trajectory))

    @property
    def lost(self) -> tuple[LostEpisode, ...]:
        """The members that left the group."""
        return tuple(o for o in self.outcomes if isinstance(o, LostEpisode))

    @property
    def varied(self) -> bool:
        """Whether at least two members finished with different worth."""
        return len(set(self.worths)) > 1

    @property
    def flat(self) -> bool:
        """Whether it was played and teaches nothing; a lost group is no such one."""
        return len(self.trajectories) > 1 and not self.varied

    def chain(self) -> Iterator[GroupResult]:
        """This result and those it replaced, newest first."""
        result: GroupResult | None = self
        while result is not None:
            yield result
            result = result.replaced
