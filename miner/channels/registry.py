"""The channels by the values of `environment.channel`; a channel's module is imported when used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miner.config.overrides import merged, parse_overrides
from miner.config.settings import EnvironmentSettings, resolve

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


def channel_settings(
    channel: str, overrides: Sequence[str] = (), **values: Any
) -> EnvironmentSettings:
    """Section `environment` with this channel, with `values` and, winning, `KEY=VALUE` overrides.

    Of the channel's own settings and of `environment`'s the last part of the name is enough:
    max_turns=1 is environment.openenv.max_turns=1.

    Raises: `ConfigurationError` naming the setting.
    """
    tree = {"environment": {"channel": channel, **values}}
    given = parse_overrides([_in_full(text, channel) for text in overrides])
    return resolve(merged(tree, given)).environment


def _in_full(text: str, channel: str) -> str:
    """`KEY=VALUE` with the name as it stands in a file of settings."""
    first = re.split(r"[.=]", text, maxsplit=1)[0].strip()
    fields = EnvironmentSettings.model_fields
    own = getattr(fields[channel].annotation, "model_fields", {}) if channel in fields else {}
    if first in own:
        return f"environment.{channel}.{text}"
    return f"environment.{text}" if first in fields else text
