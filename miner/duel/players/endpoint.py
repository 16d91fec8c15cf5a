"""A model behind an OpenAI-compatible endpoint, asked and retried as the tournament's client does.

One retry after a time-out, a connection that fails, or a status of 500 and above. Twice a time-out
loses the game; twice no connection is nobody's fault; a refusal, or twice a failure, ends the
match, except for a prompt that is too long, which loses the game.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from miner.duel.memory import TokenCounter, WordCounter
from miner.duel.outcome import Cause
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit, UnreachableError
from miner.duel.tools import ToolCall, without_thoughts
from miner.duel.turn import Request
from miner.http_replies import (
    CHAT_REPLY_LIMIT,
    Connections,
    chat_base_url,
    describe,
    excerpt,
    read_bounded,
)

READ_TIMEOUT_S = 35.0
ATTEMPTS = 2
RETRY_S = 1.0

_OVERFLOW = "context length"
"""What a server says about a prompt that is too long."""


class EndpointPlayer:
    """Asks `POST {url}/chat/completions`.

    Args:
        url: base URL, with or without /v1.
        model: the model to ask for; None: the first that the server lists.
        api_key: sent if given.
        timeout_s: longest wait for one answer.
        sleep: waits between attempts.

    Raises: `ConfigurationError` for a URL that is none.
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = READ_TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.counter: TokenCounter = WordCounter()
        self._url = chat_base_url(url)
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._sleep = sleep
        self._connections = Connections()

    async def reply(self, request: Request) -> Reply:
        """One chat completion. Raises: see `Player.reply`."""
        model = self._model
        if model is None:
            model = self._model = await self._first_model()
        answer = await self._ask("chat/completions", request.body(model))
        return _reply(answer, f"{self._url}/chat/completions")

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def _first_model(self) -> str:
        listed = await self._ask("models", None)
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise PlayerError(
                f"{self._url}/models lists no model: name one after the URL, as {self._url}#NAME"
            ) from error

    async def _ask(self, path: str, body: dict[str, Any] | None) -> Any:
        """The decoded answer of one request and its retry; `body` None: GET."""
        failure: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._sleep(RETRY_S)
            try:
                status, raw = await self._send(path, body)
            except TimeoutError as error:
                failure = ReplyForfeit(Cause.HTTP_SLOW, f"{self._url} gave no answer in time")
                failure.__cause__ = error
            except aiohttp.ClientError as error:
                failure = UnreachableError(f"{self._url} cannot be reached: {describe(error)}")
                failure.__cause__ = error
            else:
                if status < 500:
                    return self._answer(path, status, raw)
                failure = PlayerError(self._said(path, status, raw))
        assert failure is not None
        raise failure

    async def _send(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        method = "GET" if body is None else "POST"
        async with self._connections.here().request(
            method,
            f"{self._url}/{path}",
            json=body,
            headers=self._headers,
            timeout=self._timeout,
        ) as response:
            raw = await read_bounded(response, CHAT_REPLY_LIMIT)
            if raw is None:
                raise PlayerError(f"{self._url}/{path} sent more than {CHAT_REPLY_LIMIT:,} bytes")
            return response.status, raw

    def _answer(self, path: str, status: int, raw: bytes) -> Any:
        if status == 400 and _OVERFLOW in raw.decode("utf-8", "replace").lower():
            raise ReplyForfeit(Cause.CONTEXT, self._said(path, status, raw))
        if status >= 300:
            raise PlayerError(self._said(path, status, raw))
        try:
            return json.loads(raw)
        except ValueError as error:
            raise PlayerError(self._said(path, status, raw)) from error

    def _said(self, path: str, status: int, raw: bytes) -> str:
        text = excerpt(raw[:2000].decode("utf-8", "replace"))
        return f"{self._url}/{path} answered {status}: {text}"


def _reply(answer: Any, url: str) -> Reply:
    """A completion as calls and text; what has another form than expected is left out."""
    if not isinstance(answer, dict):
        raise PlayerError(f"{url} answered with {type(answer).__name__}, not with an object")
    choices = answer.get("choices") or [{}]
    first = choices[0] if isinstance(choices, list) else None
    message = _object(_object(first).get("message"))
    usage = _object(answer.get("usage"))
    calls = message.get("tool_calls")
    content = message.get("content")
    return Reply(
        calls=[
            call for entry in (calls if isinstance(calls, list) else []) for call in _call(entry)
        ],
        content=without_thoughts(content) if isinstance(content, str) and content else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        tokens=_count(usage.get("completion_tokens")),
    )


def _call(entry: Any) -> list[ToolCall]:
    function = _object(_object(entry).get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        return []
    return [ToolCall(name, arguments if isinstance(arguments, str) else "")]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
