"""The channel `duel`: today's tournament, played in this process."""

from collections.abc import Sequence

import torch

from miner.channels.base import Channel, Lengths
from miner.config.errors import ConfigurationError, base_folder
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.findings import look_at
from miner.duel.channel.longest import turn_tokens
from miner.duel.channel.opponents import Opponents, is_model
from miner.duel.channel.replay import replay_duel
from miner.duel.channel.tasks import BASE, DuelTasks, evaluation_duels
from miner.duel.family import model_family
from miner.duel.memory import TokenizerCounter
from miner.duel.tournament_files import wording_of
from miner.environments.base import EnvironmentSource, EpisodeTask
from miner.environments.findings import Findings
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.publishing.gate import GateRule, undecided_pairs
from miner.reporting.records import Replay
from miner.rollout.renderer import ChatRenderer


class DuelChannel(Channel):
    """Games against named opponents. Opening one needs the model's tokenizer, and no server."""

    split = "grader"

    def make_tasks(self) -> DuelTasks:
        return DuelTasks(self.settings)

    def refuse_training(self) -> None:
        """Refuse models as opponents on GPUs: each rank would load one, outside of every plan."""
        models = [name for name in self.settings.opponents if is_model(name)]
        if models and torch.cuda.is_available():
            raise ConfigurationError(
                f"environment.opponents names models ({', '.join(models)}), and no memory of a GPU "
                "is planned for them: name random, mcts:SIMULATIONS, teacher or strong, or train "
                "on a CPU"
            )

    async def open(self, found: Findings | None = None, *, patience_s: float = 0.0) -> DuelSource:
        wanted = self.settings
        rivals = Opponents(wanted.games, self.model, self.published)
        for opponent in wanted.opponents:
            rivals.check(opponent)
        tokenizer, family = model_family(self.model, wanted.tool_parser)
        return DuelSource(
            rivals,
            wording_of(None),
            family=family,
            counter=TokenizerCounter(tokenizer) if tokenizer else None,
            notes=wanted.notes,
        )

    async def check(self, source: EnvironmentSource) -> Findings:
        """Look at the model: how its calls are read and how long its turns become."""
        assert isinstance(source, DuelSource)
        return look_at(base_folder(self.model), self.settings.games, source)

    def compared(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """Games of the tournament's own seeds, both seats of each, opponents in turns."""
        wanted = self.settings
        sizes = (*wanted.cards, *wanted.boards)
        return evaluation_duels(count, base_seed, wanted.games, self._compared_with, sizes)

    @property
    def _compared_with(self) -> list[str]:
        """The opponents without `BASE`, which here is the model that plays."""
        wanted = self.settings.opponents
        return [name for name in wanted if name != BASE] or list(wanted)

    def gate(self) -> GateRule:
        return undecided_pairs

    def lengths(self, tasks: Sequence[EpisodeTask], renderer: ChatRenderer) -> Lengths:
        """Each turn is a separate chat."""
        tokens = turn_tokens(tasks, wording_of(None), renderer).values()
        return Lengths(min(tokens), max(tokens), replies=1)

    def described(self, source: EnvironmentSource) -> str:
        assert isinstance(source, DuelSource)
        return (
            f"duels of {', '.join(self.settings.games)} against "
            f"{', '.join(self._compared_with)}, "
            f"prompts in {source.wording.described}; calls are read as {source.family}"
        )

    async def replay(
        self, source: EnvironmentSource, result: EvaluationResult, episode: EpisodeRecord
    ) -> Replay:
        """The game is played again: the opponent repeats its moves."""
        assert isinstance(source, DuelSource)
        return await replay_duel(source, result, episode)
