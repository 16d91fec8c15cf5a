"""The messages of an OpenEnv server.

Invariant: a message is accepted only if every field named here has its type; fields that are
not named are skipped unread.
"""

from typing import Any, Final

import msgspec

REPLY_LIMIT: Final = 4 << 20
"""Bytes of one message: more than any text that a model could be shown."""

CAPACITY_REACHED: Final = "CAPACITY_REACHED"
VALIDATION_ERROR: Final = "VALIDATION_ERROR"
NO_SESSION: Final = frozenset({"SESSION_ERROR", "FACTORY_ERROR"})
"""The server could not make the episode's environment, or lost it."""


class ObservationData(msgspec.Struct, frozen=True):
    """Data of a reply to reset or step.

    A server writes rewards that are not a number as null, so that None is also what is left of one.
    """

    observation: dict[str, Any]
    done: bool
    reward: bool | int | float | None = None


class ErrorDetail(msgspec.Struct, frozen=True):
    """Mistake in one field of an action."""

    msg: str = ""
    loc: list[str | int] = []


class ErrorData(msgspec.Struct, frozen=True):
    """Data of an error; the last two with `CAPACITY_REACHED` and `VALIDATION_ERROR` only."""

    message: str
    code: str
    max_sessions: int | None = None
    errors: list[ErrorDetail] = []


class Reply(msgspec.Struct, frozen=True):
    """Any message of a server."""

    type: str
    data: msgspec.Raw = msgspec.Raw(b"{}")


class Schemas(msgspec.Struct, frozen=True):
    """Answer of `GET /schema`; the action as JSON Schema."""

    action: dict[str, Any]


class Metadata(msgspec.Struct, frozen=True):
    """Answer of `GET /metadata`."""

    name: str
