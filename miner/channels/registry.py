"""The channels by the values of `environment.channel`; a channel's module is imported when used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from miner.config.settings import EnvironmentSettings

if TYPE_CHECKING:
    from miner.channels.base import Channel

CHANNELS = {
    "auto": "served:ServedChannel",
    "step": "served:ServedChannel",
    "graded": "served:ServedChannel",
    "builtin": "served:ServedChannel",
    "duel": "duel:DuelChannel",
    "own": "own:OwnChannel",
    "code_agent": "code_agent:CodeAgentChannel",
    "openenv": "openenv:OpenEnvChannel",
    "recorded": "recorded:RecordedChannel",
}
"""Module of this package and class. Channels of one class play the same tasks."""


def channel_class(name: str) -> type[Channel]:
    """The class of the channel `name`."""
    module, _, kind = CHANNELS[name].partition(":")
    found: type[Channel] = getattr(import_module(f"miner.channels.{module}"), kind)
    return found


def make_channel(
    settings: EnvironmentSettings, model: Path | None = None, published: Path | None = None
) -> Channel:
    """The channel that `settings` name, see `Channel`. Raises: `ConfigurationError`."""
    return channel_class(settings.channel)(settings, model, published)
