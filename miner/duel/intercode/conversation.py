"""What a policy is asked in a task and how its calls are read: layouts, not sentences.

Invariants:
* each turn is a fresh chat: the system message, then the question with all steps so far;
* layouts (labels, order, where an observation is cut, tool names, schemas) are the tournament's;
  sentences are in `Words`, of our own unless others are given;
* of a reply the first call of an offered tool counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from miner.duel.tools import Schema, ToolCall
from miner.environments.base import Message

EXECUTE, SUBMIT = "execute_bash", "submit"
MAX_TURNS = 10
SHOWN_CHARACTERS = 350
"""Of an observation, in the steps that later turns show."""

_NO_CALL = "no valid tool call"


@dataclass(frozen=True, slots=True)
class Words:
    """All sentences of the requests.

    Attributes:
        system: the system message.
        nothing_yet: stands for the steps in the first turn.
        ask: ends each turn's message.
        no_call, no_command: observations after a reply without a call, or with an empty one.
        execute, command, submit: descriptions of the tools and of the one argument.
    """

    system: str = (
        "You work in a bash shell on a small file system. Do what the question asks with as few "
        "commands as you can, change nothing else, and let the last command print what was asked "
        "for. Each turn call one tool: execute_bash to run a command, submit when you are done."
    )
    nothing_yet: str = "None."
    ask: str = "your call."
    no_call: str = "Error: the reply holds no call of execute_bash or submit."
    no_command: str = "Error: execute_bash takes a command that is not empty."
    execute: str = "Runs a command in bash and shows what it prints."
    command: str = "The command."
    submit: str = "Ends the task."


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reply asks for.

    Attributes:
        command: to be executed; None for none.
        submits: whether the task ends here.
    """

    command: str | None = None
    submits: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with it, in two words; empty for nothing."""
        if self.command is None and not self.submits:
            return "no call"
        return "no command" if self.command == "" else ""


def read(calls: Sequence[ToolCall]) -> Answer:
    """What the calls of a reply ask for; an empty `command` is one that cannot be executed."""
    call = next((call for call in calls if call.name in (EXECUTE, SUBMIT)), None)
    if call is None:
        return Answer()
    if call.name == SUBMIT:
        return Answer(submits=True)
    command = call.decoded().get("command")
    if not isinstance(command, str) or not command.strip():
        return Answer(command="")
    return Answer(command=command, submits=command.startswith(SUBMIT))


class Conversation:
    """The requests of one task.

    Args:
        question: what is asked.
        words: sentences around it.

    Attributes:
        turn: number of the turn that is asked for next.
    """

    def __init__(self, question: str, words: Words) -> None:
        self._question = question
        self._words = words
        self._steps: list[str] = []
        self.turn = 1

    def messages(self) -> tuple[Message, Message]:
        """The chat of the next turn."""
        steps = "\n".join(self._steps) or self._words.nothing_yet
        user = (
            f"Question: {self._question}\n\nPrevious steps:\n{steps}\n\n"
            f"Turn {self.turn}: {self._words.ask}"
        )
        return (
            {"role": "system", "content": self._words.system},
            {"role": "user", "content": user},
        )

    def refused(self, answer: Answer) -> str | None:
        """The observation after an answer with nothing to execute, None if there is something."""
        said = {"no call": self._words.no_call, "no command": self._words.no_command}
        return said.get(answer.fault)

    def add(self, thought: str, answer: Answer, observation: str) -> None:
        """A turn is over.

        Args:
            thought: what the reply said beside its calls; empty for nothing.
        """
        quoted = json.dumps(answer.command, ensure_ascii=False)
        tool = _NO_CALL if answer.command is None else f"{EXECUTE}(command={quoted})"
        if thought:
            self._steps.append(f"Thought {self.turn}: {thought}")
        self._steps.append(f"Tool {self.turn}: {tool}")
        self._steps.append(f"Observation {self.turn}: {observation[:SHOWN_CHARACTERS]}")
        self.turn += 1


def tools(words: Words) -> list[Schema]:
    """Schemas of the two tools, keys in the order in which the tournament sends them."""
    command = {"type": "string", "description": words.command}
    return [
        _function(EXECUTE, words.execute, {"command": command}),
        _function(SUBMIT, words.submit, {}),
    ]


def _function(name: str, description: str, properties: Schema) -> Schema:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
