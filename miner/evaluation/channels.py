"""What each value of `environment.channel` stands for, beyond the games' own channels.

A channel brings its tasks and where they are played; everything else asks it and knows no more.
The games' channels (auto, step, graded, builtin) share servers, a probe and the grader's seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rich.console import RenderableType

from miner.config.overrides import merged, parse_overrides
from miner.config.settings import EnvironmentSettings, resolve
from miner.environments.base import EnvironmentSource, TaskStream
from miner.environments.code_agent.channel import CodeAgentChannel
from miner.environments.openenv.channel import OpenEnvChannel
from miner.environments.own.channel import OwnChannel


class Findings(Protocol):
    """What a check found: for a person, and for `probe.json`."""

    def shown(self) -> RenderableType:
        """For a terminal."""
        ...

    def to_json(self) -> dict[str, Any]:
        """With the keys "channel" and "reason" at least; "warning" is said before all else."""
        ...


class Channel(Protocol):
    """One source of episodes and its tasks. It is made wherever tasks are needed, and cheaply."""

    @property
    def tasks(self) -> TaskStream:
        """What is trained on, and what is held out."""
        ...

    async def open(self) -> EnvironmentSource:
        """Where the tasks are played; once in each process, within the loop that plays.

        Raises: `ConfigurationError`, `InfrastructureError`.
        """
        ...

    async def check(self, source: EnvironmentSource) -> Findings:
        """Play a few episodes to see whether one can train on them; once in a run.

        Raises: `ConfigurationError` naming what is wrong and the way out, `InfrastructureError`.
        """
        ...


def channel_settings(
    channel: str, overrides: Sequence[str] = (), **values: Any
) -> EnvironmentSettings:
    """Of `environment.channel`, with `values` and, winning, `KEY=VALUE` as for training.

    Of the channel's own settings and of `environment`'s the last part of the name will do:
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


CHANNELS: dict[str, Callable[[EnvironmentSettings], Channel]] = {
    "own": OwnChannel,
    "code_agent": CodeAgentChannel,
    "openenv": OpenEnvChannel,
}
"""By the name in `environment.channel`; each raises `ConfigurationError` for settings that cannot
work. A name that is not here is one of the games' channels."""
