"""The one object between `environment.channel` and its episodes.

Invariant: training, evaluation, the probe and the report ask a channel and know none by name. A new
channel is one module here, its settings, and an entry in `miner.config.channel_facts`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource, EpisodeTask, TaskStream
from miner.environments.errors import EnvironmentFault
from miner.environments.findings import Findings
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.publishing.gate import GateRule
from miner.reporting.records import Replay, Split
from miner.reporting.replay import replay_of
from miner.rollout.renderer import ChatRenderer


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the prompts of one chat, replies not included.

    Attributes:
        shortest: of an episode in which every turn is asked once.
        longest: of the longest episode that a policy can bring about.
        replies: number of replies that the longest chat holds besides.
    """

    shortest: int
    longest: int
    replies: int


class Channel(ABC):
    """One source of episodes and its tasks. Cheap to make: nothing is opened before `open`.

    Args:
        settings: section `environment`.
        model: folder of the model that plays; None where another program answers.
        published: folder to which the run publishes.

    Raises: `ConfigurationError` for settings that cannot work.
    """

    tasks: TaskStream
    split: Split = "held_out"
    """Kind of the tasks that `compared` returns."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        model: Path | None = None,
        published: Path | None = None,
    ) -> None:
        self.settings = settings
        self.model = model
        self.published = published
        self.tasks = self.make_tasks()

    @abstractmethod
    def make_tasks(self) -> TaskStream:
        """Make `tasks`. Raises: `ConfigurationError` for settings that cannot work."""

    def refuse_training(self) -> None:  # noqa: B027 (most channels can be trained on as they are)
        """Raise `ConfigurationError` for settings that can be played but not trained with."""

    @abstractmethod
    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> EnvironmentSource:
        """Open the source, once in each process and within the loop that plays.

        Args:
            found: result of `check` in another process of this run.
            patience_s: seconds that servers may take to start.

        Raises: `ConfigurationError`, `InfrastructureError`.
        """

    @abstractmethod
    async def check(self, source: EnvironmentSource) -> Findings:
        """Find out before training whether one can train on it; once in a run.

        Raises: `ConfigurationError` naming what is wrong and the way out, `InfrastructureError`.
        """

    def compared(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """The tasks on which `miner evaluate` compares models: the grader's, where it has some."""
        return self.tasks.held_out(count, base_seed)

    def gate(self) -> GateRule | None:
        """Rule that a better candidate has to pass on held-out episodes to be published."""
        return None

    def lengths(self, tasks: Sequence[EpisodeTask], renderer: ChatRenderer) -> Lengths | None:
        """Lengths of the episodes of `tasks`; None where they are not known beforehand."""
        return None

    def described(self, source: EnvironmentSource) -> str:
        """A line for the user about how an evaluation is played; empty for none."""
        return ""

    async def replay(
        self, source: EnvironmentSource, result: EvaluationResult, episode: EpisodeRecord
    ) -> Replay:
        """Replay of an evaluated episode.

        Raises: ValueError where the episode does not belong to the task's game, or is not the same
            when it is played again; `EnvironmentFault`.
        """
        return replay_of(result, episode)

    async def replays(
        self,
        source: EnvironmentSource,
        result: EvaluationResult,
        count: int,
        failed: Callable[[str], None],
    ) -> list[Replay]:
        """Replays of a lost or broken episode, a won one, and others, `count` at most.

        Args:
            source: source of the episodes of `result`.
            failed: called with the reason where an episode has no replay.
        """
        played = [episode for episode in result.episodes if episode.replies]
        lost = [episode for episode in played if episode.score is not None and episode.score < 0.5]
        won = [episode for episode in played if episode.score is not None and episode.score > 0.5]
        first = lost[:1] + won[:1]
        replays = []
        for episode in (first + [episode for episode in played if episode not in first])[:count]:
            try:
                replays.append(await self.replay(source, result, episode))
            except (ValueError, EnvironmentFault) as error:
                failed(f"no replay: {error}")
        return replays
