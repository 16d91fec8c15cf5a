"""The real server's recorded answers, and what of them this server has to repeat.

Equal: status codes, structure, numbers, flags, state blocks, labels. Free: sentences.
"""

import re
from typing import Any

_PROSE_KEYS = {"message", "detail", "usage", "signature"}
_GAME_STATE = "# Current Game State\n"


def comparable(answer: Any, key: str = "") -> Any:
    """An answer without what this server says in its own words."""
    if isinstance(answer, dict) and "role" in answer:
        return _comparable_message(answer)
    if isinstance(answer, dict):
        return {name: comparable(value, name) for name, value in answer.items()}
    if isinstance(answer, list):
        return [comparable(value, key) for value in answer]
    if not isinstance(answer, str):
        return answer
    if key == "observation":
        return _wire_part(answer)
    if key == "error":
        return re.sub(r"\].*", "]", answer, flags=re.DOTALL) if answer[0] == "[" else "<reason>"
    return "<prose>" if key in _PROSE_KEYS else answer


def _comparable_message(message: dict[str, str]) -> dict[str, str]:
    """A reply whole, a turn without its closing words, nothing of the instructions."""
    content = message["content"]
    if content.startswith("Current State:\n"):
        content = content.rpartition("\n\n")[0]
    elif message["role"] != "assistant":
        content = "<prose>"
    return {**message, "content": content}


def _wire_part(observation: str) -> str:
    if _GAME_STATE in observation:
        observation = observation.partition(_GAME_STATE)[2]
    if observation.startswith("Invalid action:"):
        said = observation.partition("\n\n")[0]
        menu = observation.rpartition("\n\n")[0].rpartition("\n\n")[2]
        return f"{said}\n{menu}"
    if "Legal Actions:" in observation:
        return observation.rpartition("\n\n")[0]
    is_prose = observation.startswith(("No episode", "Episode ", "This ", "<text "))
    return "<prose>" if is_prose else observation


def shape(answer: Any) -> Any:
    """Types and names alone, without what only some games have."""
    if isinstance(answer, dict):
        return {k: shape(v) for k, v in answer.items() if k != "last_opponent_action"}
    return type(answer).__name__
