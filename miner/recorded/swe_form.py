"""Software tasks with replies and observations in exactly the form of the final's agent
(mini-swe-agent 1); system message and issue stay as a row has them.

Invariants:
* a reply is text with exactly one block of bash: another number is a format error for the agent;
* what comes before the last end of a thought is not part of a reply;
* the submission is a separate block, the last reply, and comes before the turns are over.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from miner.config.contract import SWE_SUBMISSION, SWE_TURNS

BLOCK = re.compile(r"```bash\s*\n(.*?)\n```", re.DOTALL)
"""As the agent finds commands."""
_THOUGHT_END = "</think>"
SHOWN = 10_000
"""Characters of an output; of one that has as many the first and the last half are shown."""
_OBSERVED = "Observation:"
"""Before an output in SWE-ZERO's rows, which have no return codes."""
_CUT = re.compile(r"\n\n\.\.\. \(output truncated, (\d+) chars elided\) \.\.\.\n\n")
"""In the middle of an output that SWE-ZERO's own agent has cut, to 8,000 characters."""
_SUBMITS = re.compile(r"echo\s+[\"']?" + SWE_SUBMISSION.split()[1])

Messages = list[dict[str, str]]


def rewritten(row: Sequence[Mapping[str, Any]]) -> Messages:
    """Return the messages of a row, texts of known roles, in the agent's form; no text is added.

    A call of a tool with a `command` becomes the reply's block, and its result an observation. A
    reply with several blocks ends with the first, the one that was run, where an output answers it
    or nothing does. Any other without exactly one goes, with the answer to it, and so does what
    comes after the submission, which becomes the final's own.
    Raises: `ValueError` naming the message whose call has no place in the form.
    """
    messages: Messages = []
    refused = False
    for number, message in enumerate(row):
        role, content = message["role"], message.get("content") or ""
        if role != "assistant":
            if not refused:
                messages.append(_shown(role, content, int(message.get("returncode") or 0)))
            continue
        calls = message.get("tool_calls") or []
        content = _reply(content, calls, number)
        blocks = [*BLOCK.finditer(content)]
        answered = all(map(_is_output, row[number + 1 : number + 2]))
        if len(blocks) > 1 and len(calls) != 1 and answered:  # a single call, the last, was run
            blocks, content = blocks[:1], content[: blocks[0].end()]
        refused = len(blocks) != 1
        if refused:
            continue
        submits = _SUBMITS.match(blocks[0][1].strip())
        if submits:
            content = content.replace(blocks[0][1], SWE_SUBMISSION)
        messages.append({"role": role, "content": content})
        if submits:
            break
    return messages


def observation(output: str, returncode: int = 0) -> str:
    """Return what the agent shows of a command's output, which another agent may have cut."""
    shown = f"<output>\n{output}</output>"
    parts = _CUT.split(output)
    if len(output) >= SHOWN:
        half = SHOWN // 2
        parts = [output[:half], str(len(output) - SHOWN), output[-half:]]
    if len(parts) == 3:
        head, elided, tail = parts
        shown = (
            f"<output_head>\n{head}\n</output_head>\n"
            f"<elided_chars>\n{elided} characters elided\n</elided_chars>\n"
            f"<output_tail>\n{tail}\n</output_tail>"
        )
    return f"<returncode>{returncode}</returncode>\n{shown}"


def problem(messages: Sequence[Mapping[str, str]]) -> str:
    """Return why `rewritten` messages are not of the form, in a sentence; empty if they are."""
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
    submits = [turn for turn, reply in enumerate(replies, 1) if SWE_SUBMISSION in reply]
    if submits != [len(replies)] or BLOCK.findall(replies[-1]) != [SWE_SUBMISSION]:
        return "its last reply, and no other, must submit and do nothing else"
    if len(replies) >= SWE_TURNS:
        return f"it submits in turn {len(replies)}, which is not before turn {SWE_TURNS}"
    return ""


def fault(reply: str) -> str:
    """Return why the agent would not take a reply, in a few words; empty if it would."""
    blocks = BLOCK.findall(reply.rpartition(_THOUGHT_END)[2])
    if len(blocks) != 1:
        return f"{len(blocks)} blocks of bash"
    submits = SWE_SUBMISSION.split()[1] in blocks[0]
    return "submission beside other commands" * (submits and blocks[0].strip() != SWE_SUBMISSION)


def _is_output(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or str(message.get("content")).startswith(_OBSERVED)


def _shown(role: str, content: str, returncode: int) -> dict[str, str]:
    if role == "user" and content.startswith(_OBSERVED):
        role, content = "tool", content.removeprefix(_OBSERVED).removeprefix(" ")
    if role == "tool":
        return {"role": "user", "content": observation(content, returncode)}
    return {"role": role, "content": content}


def _reply(content: str, calls: Sequence[Mapping[str, Any]], number: int) -> str:
    text = content.rpartition(_THOUGHT_END)[2].strip()
    for call in calls:
        try:
            arguments = call["function"]["arguments"]
            decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
            command = decoded["command"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"message {number} calls a tool without a command") from error
        text = f"{text}\n\n```bash\n{command}\n```".strip()
    return text
