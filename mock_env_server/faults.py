"""Faults on demand as data: what to break, how often and where.

Invariants:
* the n-th request to a path under the same plan meets the same fault;
* no plan names a path under /admin, so that every plan can be taken back.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

GAME_PATHS = ("/reset", "/step", "/state", "/stop", "/evaluate", "/call")


class FaultKind(StrEnum):
    """Faults of one request."""

    HTTP_500 = "http_500"
    HTTP_429 = "http_429"
    HTTP_503 = "http_503"
    DROP_REQUEST = "drop_request"
    DROP_REPLY = "drop_reply"
    TRUNCATED_JSON = "truncated_json"
    GARBAGE_JSON = "garbage_json"
    WRONG_TYPES = "wrong_types"
    HUGE_BODY = "huge_body"
    FORGET_EPISODE = "forget_episode"
    HANG = "hang"


FAULT_HELP = {
    FaultKind.HTTP_500: "answers 500 without doing anything",
    FaultKind.HTTP_429: "answers 429 without doing anything",
    FaultKind.HTTP_503: "answers 503 without doing anything",
    FaultKind.DROP_REQUEST: "closes the connection without doing anything",
    FaultKind.DROP_REPLY: "does what was asked, then closes the connection instead of answering",
    FaultKind.TRUNCATED_JSON: "does what was asked, sends the first half of the answer",
    FaultKind.GARBAGE_JSON: "does what was asked, answers with bytes that are no JSON",
    FaultKind.WRONG_TYPES: "does what was asked, one field of the answer has a wrong type",
    FaultKind.HUGE_BODY: "does what was asked, pads the answer with spaces to huge_body_mib",
    FaultKind.FORGET_EPISODE: "forgets the request's episode first",
    FaultKind.HANG: "never answers",
}


class FaultPlan(BaseModel):
    """Plan of faults. The default plan breaks nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, description="fixes which request meets which fault")
    paths: tuple[str, ...] = Field(default=GAME_PATHS, description="paths that are disturbed")
    latency_ms: float = Field(default=0.0, ge=0, description="by which each answer is held back")
    rates: dict[FaultKind, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    huge_body_mib: float = Field(default=64.0, gt=0)
    restart_after: int | None = Field(
        default=None,
        ge=1,
        description="every so many requests: all episodes lost, connection closed",
    )

    @field_validator("paths")
    @classmethod
    def _never_admin(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or path.startswith("/admin"):
                raise ValueError(f"path {path!r}: expected one like /step, and not under /admin")
        return paths

    @model_validator(mode="after")
    def _rates_are_exclusive(self) -> FaultPlan:
        if sum(self.rates.values()) > 1 + 1e-9:
            raise ValueError("rates add up to more than 1: a request meets at most one fault")
        return self

    @property
    def idle(self) -> bool:
        """Return whether the plan changes nothing."""
        disturbed = self.latency_ms or self.restart_after or any(self.rates.values())
        return not disturbed

    def draw(self, path: str, count: int) -> tuple[FaultKind | None, random.Random]:
        """Fault and further randomness for request number `count` to `path`."""
        rng = random.Random(f"{self.seed}:{path}:{count}")
        point = rng.random()
        for kind, rate in sorted(self.rates.items()):
            if point < rate:
                return kind, rng
            point -= rate
        return None, rng


NO_FAULTS = FaultPlan()
