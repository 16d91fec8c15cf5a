"""The channel that settings name; its module is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from miner.config.channel_facts import FACTS
from miner.config.settings import EnvironmentSettings

if TYPE_CHECKING:
    from miner.channels.base import Channel


def channel_class(name: str) -> type[Channel]:
    """The class of the channel `name`."""
    module, _, kind = FACTS[name].implementation.partition(":")
    found: type[Channel] = getattr(import_module(f"miner.channels.{module}"), kind)
    return found


def make_channel(
    settings: EnvironmentSettings, model: Path | None = None, published: Path | None = None
) -> Channel:
    """The channel that `settings` name, see `Channel`. Raises: `ConfigurationError`."""
    return channel_class(settings.channel)(settings, model, published)
