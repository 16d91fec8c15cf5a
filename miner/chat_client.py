"""The client of chat endpoints of OpenAI's form: duels, evaluations and the mock grader ask by it.

Invariants:
* a failure that may pass (no connection, no answer in time, 5xx) is tried again after a pause that
  doubles; a refusal, and an answer that is no completion, are final;
* an answer is untrusted: bounded in size, checked in type, quoted only in part; the API key appears
  in no message.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from miner.encodable import encodable
from miner.http_replies import (
    CHAT_REPLY_LIMIT,
    Connections,
    JsonServer,
    excerpt,
)
from miner.inference.vllm.wire import ModelsReply

MAX_PAUSE_S = 60.0


class ChatError(Exception):
    """No completion came, and another try would end the same way.

    Attributes:
        status: HTTP status of a refusal, else 0.
        body: beginning of what the endpoint sent.
    """

    def __init__(self, message: str, status: int = 0, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class ChatAwayError(ChatError):
    """A failure that may pass; its cause is a time-out, a connection's error, or None for a 5xx."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer, streamed or whole.

    Attributes:
        url: address of the endpoint, for messages.
        message: of the first choice; None where it has none.
        usage: token counts as the endpoint reports them.
    """

    url: str
    message: dict[str, Any] | None
    usage: dict[str, Any] | None

    @property
    def text(self) -> str:
        """The message's text, `encodable`.

        Raises: `ChatError` for an answer without a message of text.
        """
        content = None if self.message is None else self.message.get("content")
        if self.message is None or not isinstance(content, str | None):
            raise ChatError(f"{self.url} answered in another shape than a chat completion")
        return encodable(content or "")


class ChatClient(JsonServer):
    """Client of one endpoint. Usable from any event loop.

    Args:
        url: the part before `/chat/completions`.
        api_key: sent if given.
        tries: most times that a request is sent; None: until the caller's time is up.
        pause_s: before the second try.
        patience_s: longest wait for one answer.
        sleep: waits between tries.
        connections: to share with other clients; they belong to the caller.
    """

    what = "the model endpoint"
    redirects = True

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        tries: int | None = 3,
        pause_s: float = 0.5,
        patience_s: float | None = 180.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(url, connections)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tries = tries
        self._pause_s = pause_s
        self._patience = aiohttp.ClientTimeout(total=patience_s)
        self._sleep = sleep

    async def complete(self, body: dict[str, Any]) -> Completion:
        """The answer to `POST /chat/completions`. Raises: `ChatError`."""
        raw = await self._ask("chat/completions", json.dumps(body).encode())
        url = f"{self.url}/chat/completions"
        if not raw.lstrip().startswith((b"data:", b":")):
            whole = _object(raw, url)
            message = _first_choice(whole).get("message")
            return Completion(url, message if isinstance(message, dict) else None, _usage_of(whole))
        texts, usage = [], None
        for event in _events(raw):
            part = _object(event, url)
            if part.get("error"):
                raise ChatError(f"{url} reported an error in its stream: {_shown(event)}")
            delta = _first_choice(part).get("delta")
            content = delta.get("content") if isinstance(delta, dict) else None
            texts.append(content if isinstance(content, str) else "")
            usage = _usage_of(part) or usage
        return Completion(url, {"content": "".join(texts)}, usage)

    async def first_model(self) -> str:
        """The first model that the endpoint lists. Raises: `ChatError`, also if it lists none."""
        raw = await self._ask("models")
        try:
            return str(msgspec.json.decode(raw, type=ModelsReply).data[0].id)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
            raise ChatError(
                f"{self.url}/models lists no model: name one after the URL, as {self.url}#MODEL"
            ) from error

    async def _ask(self, path: str, data: bytes | None = None) -> bytes:
        """The answer to a request and its retries; without `data` a GET."""
        pause = self._pause_s
        for number in itertools.count(1):
            try:
                return await self._request(
                    "POST" if data else "GET", path, data,
                    limit=CHAT_REPLY_LIMIT, patience=self._patience, headers=self._headers,
                )  # fmt: skip
            except ChatAwayError:
                if number == self._tries:
                    raise
            await self._sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)
        raise AssertionError("not reached")

    def _away(self, message: str) -> Exception:
        return ChatAwayError(message)

    def _broken(self, message: str) -> Exception:
        return ChatError(message)

    def _refused(self, path: str, status: int, body: bytes) -> Exception:
        kind = ChatError if status < 500 else ChatAwayError  # 408 and 429 too are final
        text = body[:2000].decode("utf-8", "replace")
        return kind(f"{self.url}/{path} answered HTTP {status}: {excerpt(text)}", status, text)


def _object(data: bytes, url: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{url} sent a broken reply that is no JSON: {_shown(data)}") from error
    if not isinstance(document, dict):
        raise ChatError(f"{url} answered in another shape than an object: {_shown(data)}")
    return document


def _events(data: bytes) -> Iterator[bytes]:
    """The `data:` fields of a server-sent event stream, up to `[DONE]` or its end."""
    for line in data.split(b"\n"):
        if line.startswith(b"data:"):
            event = line[5:].strip()
            if event == b"[DONE]":
                return
            yield event


def _first_choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _usage_of(document: dict[str, Any]) -> dict[str, Any] | None:
    usage = document.get("usage")
    return usage if isinstance(usage, dict) else None


def _shown(data: bytes) -> str:
    return excerpt(data[:400].decode("utf-8", "replace"))
