"""Rows of data sets that a validator has mounted: conversations, with loss on what assistants say.

Invariant: whatever lies in the folders, reading ends: rows of another form or too long are counted
and left out, and no more than `MOST_TOKENS` are held.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from jinja2 import TemplateError

from miner.duel.calls import write_calls
from miner.duel.tools import ToolCall
from miner.environments.base import Message
from miner.rewards.all_moves import unsampled
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import RolloutRow

logger = logging.getLogger(__name__)

MOST_CONVERSATIONS = 20_000
"""Of one folder."""

MOST_TOKENS = 4_000_000
"""Held by a process, some 150 MB."""

_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_ROLES = ("system", "user", "assistant", "tool")


class _OtherForm(ValueError):
    """A conversation that cannot be learned from; the message is what it lacks."""


class MountedData:
    """Rows of the data sets in `folders`; reads them when made.

    Args:
        family: of the model's calls, one of `calls.FORMS`.
        most_tokens: longest prompt and reply together.

    Attributes:
        rows: everything that can be learned from.
        left_out: how many conversations each reason has kept out.
    """

    def __init__(
        self, folders: Sequence[Path], renderer: ChatRenderer, family: str, most_tokens: int
    ) -> None:
        self._renderer = renderer
        self._family = family
        self._most_tokens = most_tokens
        self.rows: list[RolloutRow] = []
        self.left_out: Counter[str] = Counter()
        held = 0
        for conversation in (each for folder in folders for each in self._read(folder)):
            try:
                rows = list(self._replies(conversation))
            except (_OtherForm, TemplateError) as error:
                self.left_out[str(error)[:80]] += 1
                continue
            self.rows += rows
            held += sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
            if held > MOST_TOKENS:
                break

    @property
    def described(self) -> str:
        """One line for the log."""
        kinds = ", ".join(f"{count} for {reason}" for reason, count in self.left_out.most_common(5))
        left_out = (
            f"{self.left_out.total()} conversations left out ({kinds})" if kinds else "all read"
        )
        return f"mounted data: {len(self.rows)} replies to learn; {left_out}"

    def sample(self, count: int, seed: str) -> list[RolloutRow]:
        """Some rows, drawn by `seed`; fewer where there are no more."""
        return Random(seed).sample(self.rows, min(count, len(self.rows)))

    def _read(self, folder: Path) -> Iterator[Mapping[str, Any]]:
        """Records of the files in a folder, in the order of their names."""
        from datasets import load_dataset  # takes seconds

        read = 0
        for file in sorted(folder.rglob("*")):
            if (builder := _BUILDERS.get(file.suffix)) is None:
                continue
            try:
                records = load_dataset(builder, data_files=str(file), split="train", streaming=True)
                for record in records:
                    yield record
                    read += 1
                    if read == MOST_CONVERSATIONS:
                        return
            except Exception as error:  # pyarrow, JSON, encodings: each has errors of its own
                self.left_out[f"{file.name} cannot be read"] += 1
                logger.warning("%s cannot be read to its end: %s", file, str(error)[:200])

    def _replies(self, record: Mapping[str, Any]) -> Iterator[RolloutRow]:
        """A row of each assistant's message behind all before it. Raises: `_OtherForm`."""
        messages = [self._message(each) for each in _listed(record.get("messages"))]
        tools = _listed(record.get("tools") or [])
        if not any(message["role"] == "assistant" for message in messages):
            raise _OtherForm("no message of an assistant")
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number == 0:
                continue
            prompt = self._renderer.encode(self._renderer.render(messages[:number], tools))
            reply = self._renderer.encode_reply(message["content"])
            if len(prompt) + len(reply) > self._most_tokens:
                raise _OtherForm(f"longer than {self._most_tokens} tokens")
            yield unsampled(prompt, reply, 1.0)

    def _message(self, given: Any) -> Message:
        """A message of text alone, an assistant's calls as the model writes them."""
        if not isinstance(given, Mapping) or given.get("role") not in _ROLES:
            raise _OtherForm("a message without a known role")
        content = given.get("content") or ""
        if not isinstance(content, str):
            raise _OtherForm("content that is no text")
        calls = [_call(each) for each in given.get("tool_calls") or []]
        if calls:
            content = "\n".join(filter(None, (content, write_calls(self._family, calls))))
        return {"role": given["role"], "content": content}


def _listed(value: Any) -> list[Any]:
    """A list, or the text of one in JSON. Raises: `_OtherForm`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _OtherForm("text in the place of a list") from None
    if not isinstance(value, list):
        raise _OtherForm("no list of messages")
    return value


def _call(given: Any) -> ToolCall:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _OtherForm("a tool call without a name")
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(function["name"], text)
