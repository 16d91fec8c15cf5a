"""Rows of InterCode's data set, a question and the command that answers it, as graded turns.

Invariants:
* each turn is a fresh chat of two messages with two tools, of which one is called;
* an observation that is not known is not made up: a second turn, which submits, is taught after a
  command that prints nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from miner.config.errors import ConfigurationError
from miner.duel.tools import Schema, ToolCall, shaped
from miner.duel.tournament_files import COPY, Wordings

FILE: Final = Path("validator/evaluation/evaluators/intercode.py")
"""In the tournament's repository and in a copy of it."""
EXECUTE, SUBMIT = "execute_bash", "submit"
LONGEST = 512
"""Characters of a command; the set's other half are programs in Python, with prose around them."""

_MARKS = {"query": "\x00q", "_format_tool_history(history)": "\x00h", "turn": "\x00t"}
_PROGRAM = re.compile(r"```|\n\s*\n|^(?:class|def|from|import)\s", re.MULTILINE)
_MOVES = re.compile(r"cd\s[^\n]*[;&|\n]")
_QUIET = re.compile(r"\s*(?:chgrp|chmod|chown|cp|ln|mkdir|mv|rm|rmdir|touch)\s")
_INTO_A_FILE = re.compile(r"\s*(?:echo|printf)\s[^>]*[^0-9>]>>?\s*(?!/dev/)[^\s'\"]+\s*$")
_LOUD = re.compile(r"[|`&\n]|\$\(|\s-\w*[civ]|\s--(?:changes|interactive|verbose)")


@dataclass(frozen=True, slots=True)
class InterCodeWords:
    """All sentences of a request.

    Attributes:
        system: the first message.
        user: the second around question, steps and number of the turn.
        no_steps: in the place of steps in the first turn.
        tools: `EXECUTE` and `SUBMIT`.
    """

    system: str
    user: tuple[str, ...]
    no_steps: str
    tools: tuple[Schema, ...]


def turns(record: Mapping[str, Any]) -> list[tuple[str, ToolCall]]:
    """The user's message and the call to make in a record's first turn, and in the second if the
    output that it shows is known.

    Raises: `ValueError` naming what the record lacks.
    """
    question, command = record.get("instruction"), record.get("response")
    if not isinstance(question, str) or not isinstance(command, str):
        raise ValueError("no instruction and response")
    question, command = question.strip(), command.strip()
    if not question or not command:
        raise ValueError("an empty instruction or response")
    if len(command) > LONGEST or _PROGRAM.search(command):
        raise ValueError("a response that is no command")
    if _MOVES.match(command):  # after which the evaluator's shell refuses all commands
        raise ValueError("a change of the folder with more after it")
    words = read_words()
    before, steps, turn, after = words.user
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    done = f"Tool 1: {EXECUTE}(command={json.dumps(command)})\nObservation 1: "
    asked = [(words.no_steps, ToolCall(EXECUTE, arguments))]
    asked += [(done, ToolCall(SUBMIT, "{}"))] * prints_nothing(command)
    return [
        (f"{before}{question}{steps}{history}{turn}{number}{after}", call)
        for number, (history, call) in enumerate(asked, start=1)
    ]


def prints_nothing(command: str) -> bool:
    """Return whether a command that succeeds surely prints nothing; most that do not print do."""
    return all(
        (_QUIET.match(part) or _INTO_A_FILE.match(part)) and not _LOUD.search(part)
        for part in re.split(r"&&|;", command)
    )


@cache
def read_words(copy: Path = COPY) -> InterCodeWords:
    """The tournament's sentences where its file is in the copy, else our own.

    Raises: `ConfigurationError` for a file of another form than expected.
    """
    if not (copy / FILE).is_file():
        return _OWN
    source = Wordings(copy / FILE)
    user = re.split("\x00([qht])", source.template("_build_tool_messages", _MARKS))
    if user[1::2] != ["q", "h", "t"]:
        raise ConfigurationError(f"{source.path}: _build_tool_messages has another form")
    given = source.literals_given("_function_tool", "build_intercode_action_tools")
    try:
        (execute, execute_parameters), (submit, submit_parameters) = given
    except ValueError as error:
        raise ConfigurationError(f"{source.path}: its tools have another form: {error}") from error
    return InterCodeWords(
        system=source.text("INTERCODE_TOOL_SYSTEM_PROMPT"),
        user=tuple(user[::2]),
        no_steps=source.returned("_format_tool_history"),
        tools=_tools((execute, execute_parameters), (submit, submit_parameters)),
    )


def _tools(*described: tuple[str, Schema]) -> tuple[Schema, ...]:
    """`EXECUTE` and `SUBMIT` of these descriptions and parameters."""
    functions = zip((EXECUTE, SUBMIT), described, strict=True)
    return tuple(
        shaped(
            [
                {"function": {"name": name, "description": words, "parameters": parameters}}
                for name, (words, parameters) in functions
            ]
        )
    )


def _parameters(**described: str) -> Schema:
    properties = {
        name: {"type": "string", "description": words} for name, words in described.items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_OWN = InterCodeWords(
    system=(
        "A question is to be answered with a Unix shell. Each turn calls one of two tools: "
        f"{EXECUTE} runs a command in Bash, {SUBMIT} says that its last output is the answer."
    ),
    user=("Question: ", "\n\nPrevious steps:\n", "\n\nTurn ", ": one call of a tool."),
    no_steps="None so far.",
    tools=_tools(
        ("Run a command in Bash.", _parameters(command="The command.")),
        ("Give the last output as the answer.", _parameters()),
    ),
)
