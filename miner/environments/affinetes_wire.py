"""The shapes of the affinetes API's replies.

Invariant: a reply is accepted only if every field named here has its type; fields that are
not named are skipped unread.
"""

from typing import Annotated, Final

import msgspec

STEP_REPLY_LIMIT: Final = 1 << 20
EVALUATE_REPLY_LIMIT: Final = 8 << 20

Score = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class ActionFault(msgspec.Struct, frozen=True):
    """`info.error` of a step reply."""

    type: str
    message: str = ""


class EpisodeInfo(msgspec.Struct, frozen=True):
    """`info` of a reset or step reply; all None when the server does not know the episode."""

    task_id: int | None
    seed: int | None
    game_name: str | None
    llm_player_id: int | None
    opponent_type: str | None
    error: ActionFault | None = None


class StepReply(msgspec.Struct, frozen=True):
    """Result of `/reset` and `/step`. `reward` is meaningful only when `done`."""

    observation: str
    reward: float
    done: bool
    truncated: bool
    episode_id: str | None
    info: EpisodeInfo


class PlayedAction(msgspec.Struct, frozen=True):
    """One entry of the action history of a graded episode (chance is player -1)."""

    player_id: int
    action: int
    is_llm: bool = False


class EvaluateExtra(msgspec.Struct, frozen=True):
    """`extra` of a graded result; `final_return` is None for a game that was not played out."""

    final_return: float | None = None
    game_name: str | None = None
    task_id: int | None = None
    seed: int | None = None
    action_history: list[PlayedAction] = []


class EvaluateReply(msgspec.Struct, frozen=True):
    """Result of `/evaluate`. `error` is the server's own report of a lost episode."""

    task_name: str
    score: Score
    success: bool
    extra: EvaluateExtra
    error: str | None = None


class ApiInfo(msgspec.Struct, frozen=True):
    """Name and version of a server's API, as it claims."""

    title: str
    version: str


class ApiReply(msgspec.Struct, frozen=True):
    """Answer of `GET /openapi.json`, which every FastAPI server gives."""

    info: ApiInfo


class Envelope(msgspec.Struct, frozen=True):
    """Reply to every POST: a result, or a failure with its reason."""

    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
