"""The channel `recorded`: conversations of mounted data sets, learned as they are."""

from miner.channels.base import Channel
from miner.config.errors import ConfigurationError
from miner.duel.family import model_family
from miner.environments.base import EnvironmentSource
from miner.environments.findings import Findings
from miner.publishing.gate import GateRule, form_lost
from miner.recorded.conversations import read_conversations
from miner.recorded.environment import NAME, RecordedSource, RecordedTasks


class RecordedChannel(Channel):
    """A part of the conversations is held out, to judge what was learned from the others."""

    def make_tasks(self) -> RecordedTasks:
        self._conversations = read_conversations(self.settings.datasets)
        return RecordedTasks(self._conversations)

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> RecordedSource:
        _, family = model_family(self.model, self.settings.tool_parser)
        return RecordedSource(self._conversations, family)

    def gate(self) -> GateRule:
        return form_lost

    async def check(self, source: EnvironmentSource) -> Findings:
        """Raises: `ConfigurationError` where there is nothing to learn from."""
        found = self._conversations
        if not found.trained:
            folders = ", ".join(map(str, self.settings.datasets)) or "no folder"
            raise ConfigurationError(
                f"there is nothing to learn from: {folders} with jsonl, json or parquet files of "
                f"`messages` ({found.described}); name others as environment.datasets"
            )
        return Findings(
            channel=NAME,
            environment=NAME,
            reason=f"{len(found.trained)} conversations to learn, {len(found.held_out)} held out",
            scoring="A score is the geometric mean of the probabilities of a held-out "
            "conversation's replies, token by token. Invalid replies are the model's own, at "
            "three places of each, that are not of the record's form.",
            notes=(found.described,),
        )
