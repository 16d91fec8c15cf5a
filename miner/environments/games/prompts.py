"""The wording around a game: system prompt, turn prompt and retry prompt.

Invariants:
* rendering depends on the format and the turn only, so equal turns give equal bytes;
* a format learned from an episode's messages renders each of those messages byte for byte, or
  learning fails with `PromptFormatError`;
* the parts that a client may rely on (`Legal Actions:`, `ID -> label`, ...) are the wire format;
  all other words in `PromptFormat.own` are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from miner.config.contract import agent_seat
from miner.environments.base import Message
from miner.environments.games.session import GameSession
from miner.games import GAMES, StateTextError, Turn, game_of

MAX_ATTEMPTS = 3
"""Unparsable replies in one turn after which the grader ends the episode."""


class PromptFormatError(ValueError):
    """Chat messages or stored data from which no prompt format can be read."""


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """The fixed text around what changes from turn to turn.

    Attributes:
        game_name: the game that it is for.
        system_text: the system message.
        turn_parts: the text before the state block, between it and the seat's number, between
            that and the list of actions, and after the list.
        action_parts: text before each action's id and between id and label.
        retry_parts: the text around the attempt's number; one part if it shows no number.
    """

    game_name: str
    system_text: str
    turn_parts: tuple[str, str, str, str]
    action_parts: tuple[str, str]
    retry_parts: tuple[str, ...]

    @classmethod
    def own(cls, game_name: str) -> PromptFormat:
        """The format in our own words."""
        return cls(
            game_name=game_name,
            system_text=(
                f"This is a game of {game_name}.\n\n{GAMES[game_name].rules}\n\n"
                "Answer each turn with the ID of one legal action: the number alone, no words."
            ),
            turn_parts=(
                "Current State:\n",
                "\n\nYou are Player ",
                ".\nLegal Actions:\n",
                "\n\nYour choice (ID only):",
            ),
            action_parts=("", " -> "),
            retry_parts=(
                "That reply named no legal action. Send the ID of one listed action and nothing "
                "else. Attempt ",
                f" of {MAX_ATTEMPTS}.",
            ),
        )

    @classmethod
    def learn(cls, messages: Sequence[Message], *, task_id: int, seed: int) -> PromptFormat:
        """The format of a server, from the chat messages of one graded episode.

        Args:
            messages: system, user, assistant, user, ...; more turns and retries prove more.
            task_id, seed: task and seed of the episode (against the random opponent,
                where the game's text cannot be read back).

        Raises: `PromptFormatError` when the messages do not fit one fixed format,
        `ConfigurationError` for an unsupported game.
        """
        game_name = game_of(task_id).name
        if [message["role"] for message in messages[:2]] != ["system", "user"]:
            raise PromptFormatError(
                f"expected a system and a user message first, got roles "
                f"{[message['role'] for message in messages[:2]]}"
            )
        opening = messages[1]["content"]
        first = _turn_shown(game_name, opening, seed) or GameSession(task_id, seed).turn()
        turn_parts, action_parts = _turn_wording(opening, first)
        own = cls.own(game_name)
        drafted = cls(
            game_name=game_name,
            system_text=messages[0]["content"],
            turn_parts=turn_parts,
            action_parts=action_parts,
            retry_parts=own.retry_parts,
        )
        retries = _retries(drafted, messages[1:], seed)
        if not retries:
            return drafted
        return replace(drafted, retry_parts=_retry_wording(retries))

    def system_message(self) -> Message:
        """The message that opens an episode."""
        return {"role": "system", "content": self.system_text}

    def turn_message(self, turn: Turn) -> Message:
        """The message that asks for a decision."""
        before, to_seat, to_actions, after = self.turn_parts
        actions = self._actions(turn)
        content = f"{before}{turn.state_text}{to_seat}{turn.seat}{to_actions}{actions}{after}"
        return {"role": "user", "content": content}

    def retry_message(self, attempt: int) -> Message:
        """The message after the `attempt`-th unparsable reply of a turn (1, 2 or 3)."""
        return {"role": "user", "content": str(attempt).join(self.retry_parts)}

    def _actions(self, turn: Turn) -> str:
        lead, separator = self.action_parts
        return "\n".join(f"{lead}{action}{separator}{name}" for action, name in turn.labels.items())


def _turn_shown(game_name: str, text: str, seed: int) -> Turn | None:
    """The turn that a message shows, where the game's text can be read back."""
    read = GAMES[game_name].read_turn
    if read is None:
        return None
    try:
        return read(text, agent_seat(seed))
    except StateTextError as error:
        raise PromptFormatError(f"cannot learn from a malformed turn: {error}") from error


def _turn_wording(text: str, turn: Turn) -> tuple[tuple[str, str, str, str], tuple[str, str]]:
    """The fixed parts of a turn message that shows `turn`."""
    before, found, rest = text.partition(turn.state_text)
    if not found:
        raise PromptFormatError(
            f"the first user message does not show the state {turn.state_text[:200]!r}, "
            f"it reads {text[:200]!r}"
        )
    action, name = next(iter(turn.labels.items()))
    line = re.search(rf"^([^\d\n]*){action}([^\d\n]+){re.escape(name)}$", rest, re.MULTILINE)
    if line is None:
        raise PromptFormatError(f"no line names action {action} as {name!r} in {rest[:400]!r}")
    action_parts = (line[1], line[2])
    listed = "\n".join(f"{line[1]}{a}{line[2]}{label}" for a, label in turn.labels.items())
    between, found, after = rest.partition(listed)
    seat = re.search(rf"(?<!\d){turn.seat}(?!\d)", between)
    if not found or seat is None:
        raise PromptFormatError(
            f"expected the seat {turn.seat} and then {len(turn.labels)} actions, one a line, "
            f"after the state, got {rest[:400]!r}"
        )
    return (before, between[: seat.start()], between[seat.end() :], after), action_parts


def _retries(drafted: PromptFormat, messages: Sequence[Message], seed: int) -> dict[int, str]:
    """Retry texts by attempt number; checks every turn message on the way."""
    retries: dict[int, str] = {}
    attempt = 0
    for message in messages:
        text = message["content"]
        if message["role"] != "user":
            continue
        if _is_turn(drafted, text):
            attempt = 0
            turn = _turn_shown(drafted.game_name, text, seed)
            if turn is not None and drafted.turn_message(turn)["content"] != text:
                raise PromptFormatError(
                    f"turns differ in wording: {text[:400]!r} does not fit {drafted.turn_parts!r}"
                )
            continue
        attempt += 1
        if retries.setdefault(attempt, text) != text:
            raise PromptFormatError(
                f"retry {attempt} reads {text[:200]!r} here and {retries[attempt][:200]!r} before"
            )
    return retries


def _is_turn(drafted: PromptFormat, text: str) -> bool:
    return text.startswith(drafted.turn_parts[0]) and text.endswith(drafted.turn_parts[3])


def _retry_wording(retries: Mapping[int, str]) -> tuple[str, ...]:
    """The fixed parts of a retry message around the attempt's number."""
    first = min(retries)
    candidates: list[tuple[str, ...]] = [
        (retries[first][: match.start()], retries[first][match.end() :])
        for match in re.finditer(rf"(?<!\d){first}(?!\d)", retries[first])
    ]
    # "attempt 1 of 3" before any other 1, such as an example id.
    candidates.sort(key=lambda parts: not parts[1].lstrip().startswith(("of", "/")))
    candidates.append((retries[first],))
    for parts in candidates:
        if all(str(attempt).join(parts) == text for attempt, text in retries.items()):
            return parts
    raise PromptFormatError(f"retry texts do not differ in the attempt's number only: {retries!r}")
