"""Settings of the code agent: where outputs go, how many turns, what runs the code."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from miner.config.section import Section


class CodeAgentSettings(Section):
    """channel = code_agent."""

    form: Literal["message", "inline"] = Field(
        "message",
        description="Where a program's output goes: a message of its own, or on within the reply.",
    )
    max_turns: int = Field(4, ge=1, description="Replies of an episode, the answer included.")
    executor: Literal["local", "e2b"] = Field(
        "local", description="What runs the code: the sandbox of this machine, or E2B."
    )
