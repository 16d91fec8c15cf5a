"""Groups of episodes that are comparable: all members play the same task.

Invariant: a result has exactly one outcome per member, a trajectory or a typed failure; nothing is
put instead of a lost episode, so a baseline over `trajectories` never sees an invented score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from miner.config.errors import ConfigurationError
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
    """Result of a group.

    Attributes:
        group: the group that was played.
        outcomes: one per member, in the members' order.
    """

    group: Group
    outcomes: tuple[Outcome, ...]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The finished members."""
        return tuple(o for o in self.outcomes if isinstance(o, Trajectory))

    @property
    def lost(self) -> tuple[LostEpisode, ...]:
        """The members that left the group."""
        return tuple(o for o in self.outcomes if isinstance(o, LostEpisode))


def refusal(results: Sequence[GroupResult]) -> str:
    """Message of the first `ConfigurationError` that an episode was lost to; "" without one."""
    errors = (lost.error for result in results for lost in result.lost)
    return next((str(error) for error in errors if isinstance(error, ConfigurationError)), "")
