"""Conversations of data sets that a validator has mounted.

Invariants:
* reading ends, with any content of the folders: rows of another form are counted and left out,
  no more than `MOST_READ` are looked at, and no more than `MOST_CHARACTERS` are held;
* what is read of a larger set comes from all of its parts: some sets are sorted by task;
* every process reads the same conversations under the same numbers;
* all conversations of a task are held out, or none is.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from miner.config.contract import (
    DUEL_TURN_TOKENS,
    GAMES,
    INTERCODE_DATASET,
    SWE_DATASET,
    dataset_folder,
)
from miner.duel.calls import write_calls
from miner.duel.tools import ToolCall, shaped
from miner.environments.base import Message, Tool
from miner.environments.split import split
from miner.recorded.intercode_form import read_words, turns
from miner.recorded.record_files import some_records
from miner.recorded.swe_form import problem, rewritten

MOST_READ = 100_000
"""Records of one folder that are looked at."""
MOST_CHARACTERS = 400_000_000
"""Held by a process of all folders, each its share; some 100 million tokens."""
MOST_OF_A_TASK = 4
"""Conversations that begin alike: some sets have a hundred attempts at each task."""
MOST_HELD_OUT = 150
"""Tasks: an evaluation plays 100 conversations, and some are too long for a row."""

_ROLES = ("system", "user", "assistant", "tool")


class _OtherForm(ValueError):
    """A record that cannot be learned from; the message is what it lacks."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, whose last message is an assistant's.

    Attributes:
        messages: role and text of each.
        calls: of the messages that have some, by their index.
        tools: functions on offer.
        software: true if it is one of the final's software tasks, in their form.
        longest: tokens that its row may have.
    """

    messages: tuple[Message, ...]
    calls: Mapping[int, Sequence[ToolCall]]
    tools: tuple[Tool, ...] = ()
    software: bool = False
    longest: float = math.inf

    @property
    def replies(self) -> list[int]:
        """Indices of the assistant's messages, but for one that nothing comes before."""
        found = (at for at, message in enumerate(self.messages) if message["role"] == "assistant")
        return [at for at in found if at > 0]

    def written(self, family: str) -> tuple[Message, ...]:
        """The messages with calls as a model of this family writes them.

        Raises: `ValueError` where its form cannot hold them.
        """
        messages = list(self.messages)
        for at, calls in self.calls.items():
            text = write_calls(family, calls, messages[at]["content"])
            messages[at] = {"role": messages[at]["role"], "content": text}
        return tuple(messages)


@dataclass
class Conversations:
    """Conversations of all folders.

    Attributes:
        every: all that can be learned from.
        held_out, trained: their numbers.
        left_out: number of records left out, by reason.
    """

    every: list[Conversation] = field(default_factory=list)
    held_out: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def described(self) -> str:
        """One line for the log."""
        kinds = ", ".join(f"{count} for {reason}" for reason, count in self.left_out.most_common(5))
        left_out = f"{self.left_out.total()} left out ({kinds})" if kinds else "all read"
        return f"mounted data: {len(self.every)} conversations to learn from; {left_out}"


@cache
def read_conversations(folders: tuple[Path, ...], games: tuple[str, ...] = ()) -> Conversations:
    """Read the jsonl, json and parquet files of data sets; once in a process.

    Args:
        games: that are learned beside; records that name another game are left out.
    """
    found = Conversations()
    by_task: dict[str, list[int]] = {}
    for folder in folders:
        characters = 0
        for record in some_records(folder, MOST_READ, found.left_out):
            try:
                task, made = _conversations(record, folder.name, games)
                numbers = by_task.setdefault(task, [])
                if len(numbers) >= MOST_OF_A_TASK:
                    raise _OtherForm(f"more than {MOST_OF_A_TASK} of one task")
            except _OtherForm as error:
                found.left_out[str(error)[:80]] += 1
                continue
            numbers += range(len(found.every), len(found.every) + len(made))
            found.every += made
            characters += sum(len(each["content"]) for one in made for each in one.messages)
            if characters > MOST_CHARACTERS // len(folders):
                break
    if by_task:
        held_out, trained = split(by_task)
        trained += held_out[MOST_HELD_OUT:]
        found.held_out = [number for task in held_out[:MOST_HELD_OUT] for number in by_task[task]]
        found.trained = [number for task in trained for number in by_task[task]]
    return found


def _conversations(
    record: Any, folder: str, games: Sequence[str]
) -> tuple[str, list[Conversation]]:
    """Key of a record's task, and its conversations. Raises: `_OtherForm`."""
    if not isinstance(record, Mapping):
        raise _OtherForm("no JSON object")
    named = {str(record.get(key)) for key in ("env", "game")} & {*GAMES}
    if games and not named <= {*games}:
        raise _OtherForm("a game that is not learned")
    if folder == dataset_folder(INTERCODE_DATASET):
        return str(record.get("instruction")), _of_intercode(record)
    one = _conversation(record, folder == dataset_folder(SWE_DATASET))
    return "\n".join(each["content"] for each in one.messages[: one.replies[0]]), [one]


def _of_intercode(record: Mapping[str, Any]) -> list[Conversation]:
    """Its turns, each a chat. Raises: `_OtherForm`."""
    words = read_words()
    try:
        said = turns(record)
    except ValueError as error:
        raise _OtherForm(str(error)) from error
    return [
        Conversation(
            (
                {"role": "system", "content": words.system},
                {"role": "user", "content": user},
                {"role": "assistant", "content": ""},
            ),
            {2: [call]},
            words.tools,
            longest=DUEL_TURN_TOKENS,
        )
        for user, call in said
    ]


def _conversation(record: Mapping[str, Any], software: bool) -> Conversation:
    """A record's messages. Raises: `_OtherForm`."""
    given = _listed(record.get("messages"))  # a copy
    for each in given:
        if not isinstance(each, Mapping) or each.get("role") not in _ROLES:
            raise _OtherForm("a message without a known role")
        if not isinstance(each.get("content") or "", str):
            raise _OtherForm("content that is not text")
    if software:
        try:
            given = rewritten(given)
        except (ValueError, TypeError, OverflowError) as error:
            raise _OtherForm(str(error)) from error
        if reason := problem(given):
            raise _OtherForm(reason)
    while given and given[-1]["role"] != "assistant":
        given.pop()
    roles = [each["role"] for each in given]
    if "assistant" not in roles[1:]:
        raise _OtherForm("no reply of an assistant")
    if ("assistant", "assistant") in pairwise(roles):
        raise _OtherForm("a reply to a reply")
    calls = {at: list(map(_call, _calls(each))) for at, each in enumerate(given)}
    if any(
        at > 0
        and each["role"] == "assistant"
        and not calls[at]
        and not (each.get("content") or "").strip()
        for at, each in enumerate(given)
    ):
        raise _OtherForm("a reply without text or call")
    return Conversation(
        tuple({"role": each["role"], "content": each.get("content") or ""} for each in given),
        {at: some for at, some in calls.items() if some},
        () if software else tuple(map(_tool, _listed(record.get("tools") or []))),
        software,
    )


def _listed(value: Any) -> list[Any]:
    """A list, or the text of one in JSON. Raises: `_OtherForm`."""
    value = _decoded(value, "text instead of a list")
    if not isinstance(value, list):
        raise _OtherForm("no list of messages")
    return list(value)


def _decoded(value: Any, otherwise: str) -> Any:
    """The JSON of a text, or what is no text as it is. Raises: `_OtherForm` with `otherwise`."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise _OtherForm(otherwise) from None


def _call(given: Any) -> ToolCall:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _OtherForm("a tool call without a name")
    arguments = function.get("arguments") or {}
    arguments = _decoded(arguments, "a tool call whose arguments are no JSON")
    if not isinstance(arguments, Mapping):
        raise _OtherForm("a tool call whose arguments are no object")
    return ToolCall(function["name"], json.dumps(arguments, ensure_ascii=False))


def _calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _OtherForm("tool calls that are no list")
    return calls


def _tool(given: Any) -> Tool:
    """A function on offer, as the tournament's engine shows it to chat templates."""
    inner = given
    for key in ("function", "parameters", "properties"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(given["function"].get("name"), str):
        raise _OtherForm("a tool of an unknown form")
    function = given["function"]
    described = {**function, "description": function.get("description") or ""}
    return shaped([{"function": described}])[0]
