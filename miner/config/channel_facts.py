"""The channels by the values of `environment.channel`: where each is, and facts for settings,
recipes and the orchestrator, which do not import it."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from miner.config.contract import FIRST_FORMAT_DTYPE, SERVING_DTYPE, ServedDtype

Channel = Literal[
    "auto", "step", "graded", "builtin", "own", "code_agent", "openenv", "duel", "recorded"
]


@dataclass(frozen=True)
class ChannelFacts:
    """One channel.

    Attributes:
        implementation: module of `miner.channels` and class. Channels of one class play the same
            tasks.
        reads: settings of the section `environment` that only it and its like read.
        asks_servers: true if episodes are played on environment servers.
        bounded: true if each of these servers bounds how many are played at once.
        served_dtype: of the engine that grades its models.
        first_format: true if it plays the servers' games.
        critics: true if credit by legal moves (`reward.credit`) has a critic.
        duels: true if two models meet in the games, which have teachers.
        supervised: true if recorded replies are learned, instead of sampled ones.
    """

    implementation: str
    reads: tuple[str, ...]
    asks_servers: bool = False
    bounded: bool = False
    served_dtype: ServedDtype = FIRST_FORMAT_DTYPE
    first_format: bool = False
    critics: bool = False
    duels: bool = False
    supervised: bool = False


_SERVED = ChannelFacts(
    "served:ServedChannel",
    reads=("name", "servers", "opponent", "deck_sizes"),
    asks_servers=True,
    bounded=True,
    first_format=True,
    critics=True,
)
FACTS: dict[str, ChannelFacts] = {
    "auto": _SERVED,
    "step": _SERVED,
    "graded": _SERVED,
    "builtin": replace(_SERVED, asks_servers=False, bounded=False),
    "own": ChannelFacts("own:OwnChannel", reads=("entry",)),
    "code_agent": ChannelFacts("code_agent:CodeAgentChannel", reads=("code_agent",)),
    "openenv": ChannelFacts(
        "openenv:OpenEnvChannel", reads=("openenv", "servers"), asks_servers=True
    ),
    "duel": ChannelFacts(
        "duel:DuelChannel",
        reads=("games", "opponents", "cards", "boards", "notes", "tool_parser"),
        served_dtype=SERVING_DTYPE,
        critics=True,
        duels=True,
    ),
    "recorded": ChannelFacts(
        "recorded:RecordedChannel",
        reads=("datasets", "tool_parser"),
        served_dtype=SERVING_DTYPE,
        supervised=True,
    ),
}
assert FACTS.keys() == set(get_args(Channel))


def unused_settings(channel: str) -> set[str]:
    """Settings of the section `environment` that `channel` does not read."""
    owned = {name for facts in FACTS.values() for name in facts.reads}
    return owned - set(FACTS[channel].reads if channel in FACTS else ())
