"""The client through which /evaluate asks the model under test: OpenAI's chat API, streamed.

Invariants:
* a refusal (any 4xx, or an answer that is no chat completion) ends the episode at once;
* a failure that may pass (5xx, no connection) is tried again, after twice the pause each time,
  until the caller's time is up;
* no answer is read beyond `CHAT_REPLY_LIMIT`; the API key reaches no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from miner.environments import Message
from miner.http_replies import CHAT_REPLY_LIMIT, read_bounded

MAX_BACKOFF_S = 60.0
_USAGE_FIELDS = ("completion_tokens", "prompt_tokens", "total_tokens")
_ERROR_EXCERPT = 300
_TOO_LONG = f"ValueError: chat reply of more than {CHAT_REPLY_LIMIT} bytes"


class ChatRefusedError(Exception):
    """The model's endpoint refused, or answered with something else than a chat completion."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One completion. `usage` is what the endpoint reported, None if nothing."""

    text: str
    usage: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ChatModel:
    """One model at one endpoint, with the sampling settings of an episode.

    Args:
        http: connections to use.
        base_url: the part before `/chat/completions`.
        backoff_s: pause before the first repetition.
    """

    http: aiohttp.ClientSession
    base_url: str
    api_key: str | None
    model: Any
    seed: Any
    temperature: Any
    backoff_s: float

    async def complete(self, messages: Sequence[Message]) -> ChatReply:
        """The reply to a conversation, however long it takes.

        Raises: `ChatRefusedError`.
        """
        if not self.api_key:
            raise ChatRefusedError("OpenAIError: no api_key was given, and the chat API needs one")
        if not str(self.api_key).isprintable():
            raise ChatRefusedError("ValueError: api_key holds characters that no header may hold")
        pause = self.backoff_s
        while True:
            try:
                return await self._attempt(messages)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_BACKOFF_S)

    async def _attempt(self, messages: Sequence[Message]) -> ChatReply:
        body = {
            "model": self.model,
            "stream": True,
            "messages": messages,
            "seed": self.seed,
            "stream_options": {"include_usage": True},
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        headers = {
            "Authorization": f"Bearer {self.api_key}",
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        async with self.http.post(url, data=orjson.dumps(body), headers=headers) as response:
            if response.status >= 500:
                response.raise_for_status()
            if response.status >= 300:
                raise ChatRefusedError(await _refusal(response))
            if response.content_type == "text/event-stream":
                return await _read_stream(response)
            whole = await read_bounded(response, CHAT_REPLY_LIMIT)
            if whole is None:
                raise ChatRefusedError(_TOO_LONG)
            return _whole_completion(whole)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    said = await response.content.read(_ERROR_EXCERPT)
    return (
        f"ValueError: API error {response.status}: the chat endpoint answered "
        f"{said.decode(errors='replace')!r}"
    )


def _whole_completion(body: bytes) -> ChatReply:
    document = _json_object(body)
    message = _first_choice(document).get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str | None) or message is None:
        raise ChatRefusedError(f"ValueError: no message in the chat reply {body[:200]!r}")
    return ChatReply(content or "", _usage(document))


async def _read_stream(response: aiohttp.ClientResponse) -> ChatReply:
    text: list[str] = []
    usage: dict[str, Any] | None = None
    async for data in _events(response):
        document = _json_object(data)
        if document.get("error"):
            raise ChatRefusedError(f"ValueError: the chat stream reported {data[:300]!r}")
        delta = _first_choice(document).get("delta")
        content = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(content, str):
            text.append(content)
        usage = _usage(document) or usage
    return ChatReply("".join(text), usage)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The `data:` fields of a server-sent event stream, up to `[DONE]` or its end."""
    size, rest = 0, b""
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > CHAT_REPLY_LIMIT:
            raise ChatRefusedError(_TOO_LONG)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ChatRefusedError(
            f"JSONDecodeError: expected a chat completion, got {data[:200]!r}: {error}"
        ) from error
    if not isinstance(document, dict):
        raise ChatRefusedError(f"ValueError: expected a chat completion, got {data[:200]!r}")
    return document


def _first_choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _usage(document: dict[str, Any]) -> dict[str, Any] | None:
    """Token counts as the real server repeats them, with the two details it never has."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return None
    counts = {name: usage.get(name, 0) for name in _USAGE_FIELDS}
    return counts | {"completion_tokens_details": None, "prompt_tokens_details": None}
