"""Settings of the channels that play no game of the tournament."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from miner.config.section import Section


class CodeAgentSettings(Section):
    """channel = code_agent."""

    form: Literal["message", "inline"] = Field(
        "message",
        description="Place of a program's output: a separate message, or appended to the reply.",
    )
    max_turns: int = Field(4, ge=1, description="Replies of an episode, the answer included.")
    max_output_characters: int = Field(
        1000, ge=1, description="A program's output is shown so far; its middle is left out."
    )
    executor: Literal["local", "e2b"] = Field(
        "local", description="Executor of the code: the sandbox of this machine, or E2B."
    )
    entry: str = Field(
        "",
        description="Problems of yours, as problems.py:Words or package.module:Words; empty: "
        "arithmetic.",
    )
    tools_script: str = Field(
        "", description="A file of Python that is run before each program, in the same run."
    )


class OpenEnvSettings(Section):
    """channel = openenv."""

    app: str = Field(
        "",
        description="A server to start here in place of environment.servers: FILE.py or "
        "FILE.py:NAME of an ASGI application.",
    )
    python: Path = Field(
        Path(".venv-openenv/bin/python"), description="app: the Python that has what it imports."
    )
    action: str | dict[str, Any] = Field(
        "",
        description="Form of a reply's action: empty by the server's schema, the name of "
        'the field that takes it, "json" where replies are JSON objects, or a table in which '
        '"{reply}" (or "{integer}") is its place.',
    )
    show: str = Field(
        "", description="The observation's field that is shown; empty: its only text, else JSON."
    )
    reset: dict[str, Any] = Field({}, description="Arguments of reset, besides the task's seed.")
    opening: dict[str, Any] = Field(
        {},
        description="Action after reset, whose observation is the first that is shown and whose "
        "reward does not count: for questions that come from a tool.",
    )
    system: str = Field("", description="System message of every episode; empty: none.")
    max_turns: int = Field(8, ge=1, description="Replies of one episode at most.")
    unfinished: Literal["sum", "zero"] = Field(
        "sum",
        description="Reward of an episode that max_turns ends: the rewards so far, or the lowest.",
    )
    return_range: tuple[float, float] = Field(
        (0.0, 1.0), description="Lowest and highest sum of an episode's rewards: scores 0 and 1."
    )
    sessions: int = Field(64, ge=1, description="Episodes at once on one server, if it lets us.")
    unseeded: Literal["refuse", "allow"] = Field(
        "refuse",
        description="allow: train although the server ignores seeds, so that the episodes of a "
        "group are different games.",
    )
    reply_seconds: float = Field(30.0, gt=0, description="Longest wait for the server's reply.")
    start_seconds: float = Field(60.0, gt=0, description="Longest wait for a server that starts.")

    @model_validator(mode="after")
    def _check_together(self) -> OpenEnvSettings:
        low, high = self.return_range
        if not low < high:
            raise ValueError(
                f"environment.openenv.return_range={list(self.return_range)} is not a range: give "
                "the lowest sum of an episode's rewards first, as in [-1, 1]"
            )
        if "seed" in self.reset:
            raise ValueError(
                f"environment.openenv.reset={self.reset} has a seed: leave it out, since each task "
                "has another one"
            )
        return self
