"""Rows of software tasks in exactly the form that the final's agent (mini-swe-agent 1) reads.

Invariants:
* a reply is text with exactly one block of bash: another number is a format error for the agent;
* what comes before the last end of a thought is not part of a reply;
* the submission is a block of its own, the last reply, and comes before the turns are over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from miner.config.contract import SWE_SUBMISSION, SWE_TURNS

BLOCK = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)
"""As the agent finds commands."""
_THOUGHT_END = "</think>"
SHOWN = 10_000
"""Characters of an output; of a longer one the first and the last half of so many are shown."""

Messages = list[dict[str, str]]


def rewritten(row: Sequence[Mapping[str, Any]]) -> Messages:
    """Return the messages of a row in the agent's form; nothing is added to what was said.

    A call of a tool with a `command` becomes the reply's block, and a tool's result an observation.
    Raises: `ValueError` naming the message that has no place in the form.
    """
    messages: Messages = []
    for number, message in enumerate(row):
        role, content = message.get("role"), message.get("content") or ""
        if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
            raise ValueError(f"message {number} is no text of a known role: {role!r}")
        if role == "assistant":
            content = _reply(content, message.get("tool_calls") or [], number)
        elif role == "tool":
            content = observation(content, int(message.get("returncode") or 0))
        messages.append({"role": "user" if role == "tool" else role, "content": content})
    return messages


def observation(output: str, returncode: int = 0) -> str:
    """Return what the agent shows of a command's output."""
    if len(output) > SHOWN:
        half = SHOWN // 2
        output = f"{output[:half]}\n[{len(output) - SHOWN} characters left out]\n{output[-half:]}"
    return f"<returncode>{returncode}</returncode>\n<output>\n{output}</output>"


def problem(messages: Sequence[Mapping[str, str]]) -> str:
    """Return why a row is not of the form, in a sentence; empty if it is."""
    roles = [message["role"] for message in messages]
    if roles[:2] != ["system", "user"]:
        return "it does not begin with a system message and the task"
    if roles[2:] != ["assistant", "user"] * (len(roles[2:]) // 2) + ["assistant"] * (
        len(roles) % 2
    ):
        return "replies and observations do not take turns"
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    for turn, reply in enumerate(replies, 1):
        if _THOUGHT_END in reply:
            return f"reply {turn} holds a thought"
        if len(BLOCK.findall(reply)) != 1:
            return f"reply {turn} has {len(BLOCK.findall(reply))} blocks of bash, not one"
    submits = [turn for turn, reply in enumerate(replies, 1) if SWE_SUBMISSION in reply]
    if submits != [len(replies)] or BLOCK.findall(replies[-1]) != [SWE_SUBMISSION]:
        return "its last reply, and no other, must submit and do nothing else"
    if len(replies) >= SWE_TURNS:
        return f"it submits in turn {len(replies)}, which is not before turn {SWE_TURNS}"
    return ""


def _reply(content: str, calls: Sequence[Mapping[str, Any]], number: int) -> str:
    text = content.rpartition(_THOUGHT_END)[2].strip()
    for call in calls:
        try:
            arguments = call["function"]["arguments"]
            decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
            command = decoded["command"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"message {number} calls a tool without a command") from error
        text = f"{text}\n\n```bash\n{command}\n```".strip()
    return text
