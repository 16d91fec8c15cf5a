"""A model behind an OpenAI-compatible endpoint, asked and retried as the tournament's client does.

One retry after a time-out, a connection that fails, or a status of 500 and above. Twice a time-out
loses the game; twice no connection is no player's fault; a refusal, or twice a failure, ends the
match, except for a prompt that is too long, which loses the game.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from miner.chat_client import ChatAwayError, ChatClient, ChatError, Completion
from miner.config.contract import HTTP_RETRIES, HTTP_SECONDS
from miner.duel.memory import TokenCounter, WordCounter
from miner.duel.outcome import Cause
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit, UnreachableError
from miner.duel.tools import ToolCall, without_thoughts
from miner.duel.turn import Request
from miner.http_replies import chat_base_url

RETRY_S = 1.0

_OVERFLOW = "context length"
"""In a server's message about a prompt that is too long."""


class EndpointPlayer:
    """Asks `POST {url}/chat/completions`.

    Args:
        url: base URL, with or without /v1.
        model: the model to ask for; None: the first that the server lists.
        api_key: sent if given.
        timeout_s: longest wait for one answer.
        sleep: waits between attempts.

    Raises: `ConfigurationError` for an invalid URL.
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = HTTP_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.counter: TokenCounter = WordCounter()
        self._model = model
        self._client = ChatClient(
            chat_base_url(url), api_key=api_key, tries=1 + HTTP_RETRIES, pause_s=RETRY_S,
            patience_s=timeout_s, sleep=sleep,
        )  # fmt: skip

    async def reply(self, request: Request) -> Reply:
        """One chat completion. Raises: see `Player.reply`."""
        try:
            self._model = self._model or await self._client.first_model()
            return _reply(await self._client.complete(request.body(self._model)))
        except ChatAwayError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise ReplyForfeit(Cause.HTTP_SLOW, str(error)) from error
            raise (UnreachableError if error.__cause__ else PlayerError)(str(error)) from error
        except ChatError as error:
            if error.status == 400 and _OVERFLOW in error.body.lower():
                raise ReplyForfeit(Cause.CONTEXT, str(error)) from error
            raise PlayerError(str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _reply(answer: Completion) -> Reply:
    """A completion as calls and text; what has another form than expected is left out."""
    message, usage = answer.message or {}, answer.usage or {}
    calls, content = message.get("tool_calls"), message.get("content")
    return Reply(
        calls=[
            call for entry in (calls if isinstance(calls, list) else []) for call in _call(entry)
        ],
        content=without_thoughts(content) if isinstance(content, str) and content else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        tokens=_count(usage.get("completion_tokens")),
    )


def _call(entry: Any) -> list[ToolCall]:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return []
    arguments = function.get("arguments")
    return [ToolCall(function["name"], arguments if isinstance(arguments, str) else "")]


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < 1 << 31 else 0
