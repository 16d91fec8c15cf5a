"""Settings of `python -m miner evaluate`: those of a run, and who plays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from miner.config.channel_facts import FACTS
from miner.config.contract import DUEL_REPLY_TOKENS, GRADER_BASE_SEED, GRADER_EPISODES
from miner.config.errors import ConfigurationError
from miner.config.overrides import parse_overrides
from miner.config.settings import Settings

_READ = ("model", "environment", "threads")
"""Settings of training that an evaluation heeds."""

WHOLE_REPLY_TOKENS = 256
"""Longest reply of a model that is judged as by the servers' grader, which has no limit."""

BaselineName = Literal["random", "match", "highest", "lowest"]


class EvaluationRun(Settings):
    """One evaluation. `model.path` plays unless `policy` or `llm_url` is set.

    Of a run's settings only `model.path`, `environment` and `threads` are read: its file can be
    given, and `refuse_unread` is for overrides.
    """

    policy: BaselineName | None = Field(
        None, description="A baseline that plays; match bids the prize's value."
    )
    llm_url: str | None = Field(
        None,
        description="An OpenAI-compatible endpoint that plays, URL or URL#MODEL; OPENAI_API_KEY is "
        "used if set.",
    )
    name: str | None = Field(
        None,
        description="Label of the results, such as base or trained; else the model's folder.",
    )
    episodes: int = Field(GRADER_EPISODES, ge=1, le=100_000, description="Episodes to play.")
    base_seed: int = Field(GRADER_BASE_SEED, description="Of the list; the grader's is 42.")
    temperature: float = Field(
        0.0, ge=0, description="The grader's is 0; 1 samples from the model's own distribution."
    )
    dtype: Literal["float32", "float16", "bfloat16"] | None = Field(
        None,
        description="Precision of model.path; empty: as graded on a GPU (bfloat16 in duels, "
        "else float16), float32 on a CPU.",
    )
    concurrency: int | None = Field(
        None, ge=1, description="Episodes at once; empty: the grader's 4, or 64 in this process."
    )
    max_reply_tokens: int | None = Field(
        None,
        ge=1,
        description="Longest reply of model.path, in tokens; empty: 512 in duels, as graded, else "
        "256 (the servers' grader has no limit).",
    )
    replays: int = Field(2, ge=0, description="Games to keep for looking at.")
    out: Path = Field(
        Path("runs/evaluate"),
        description="Folder for JSON and pictures; several evaluations may share it.",
    )

    @model_validator(mode="after")
    def _check_one_plays(self) -> EvaluationRun:
        if self.policy and self.llm_url:
            raise ValueError("policy and llm_url are both set: name the one that plays")
        if not (self.policy or self.llm_url or self.model.path):
            raise ValueError("no player: set model.path, policy (policy=match) or llm_url")
        if FACTS[self.channel].supervised:
            raise ValueError(
                f"environment.channel={self.channel} is learned, not played: its scores are those "
                "of miner train"
            )
        return self

    @property
    def folder(self) -> Path | None:
        """The model that plays; None where a baseline or an endpoint does."""
        return None if self.policy or self.llm_url else self.model.path

    @property
    def channel(self) -> str:
        """The channel that is set; auto is the one that plays as the grader does."""
        named = self.environment.channel
        if named != "auto":
            return named
        return "graded" if self.environment.servers else "builtin"

    @property
    def reply_tokens(self) -> int:
        """Longest reply of the model, as graded unless it is set."""
        graded = DUEL_REPLY_TOKENS if FACTS[self.channel].duels else WHOLE_REPLY_TOKENS
        return self.max_reply_tokens or graded


def refuse_unread(overrides: Sequence[str]) -> None:
    """Raise `ConfigurationError` for overrides of training's settings that no evaluation reads."""
    given = parse_overrides(overrides)
    unread = [name for name in given if name in Settings.model_fields and name not in _READ]
    if isinstance(model := given.get("model"), dict):
        unread += [f"model.{name}" for name in model if name != "path"]
    if unread:
        raise ConfigurationError(
            f"no evaluation reads {', '.join(unread)}, which training does: leave it out "
            "(an evaluation has temperature, max_reply_tokens, dtype, episodes)"
        )
