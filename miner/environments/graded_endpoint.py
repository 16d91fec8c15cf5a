"""The miner's chat endpoint: where the environment servers ask for the policy's replies.

Invariants:
* episodes are distinguished by the key in the URL, `/{key}/v1/chat/completions`, never by time;
* a request is held back until the player replies, so that a closed episode can still be refused
  with a status: 404, on which the real server was seen to end an episode at once;
* a repeated request gets the reply already given, and the player never sees it.
"""

import asyncio
import json
import logging
import os
import secrets
import socket
import time
from typing import Any, Final

import msgspec
from aiohttp import web
from yarl import URL

from miner.config.errors import ConfigurationError
from miner.environments.base import Message
from miner.environments.errors import InfrastructureError

MODEL_NAME: Final = "policy"
FIRST_PORT = 28480
"""Of rank 0; below the ports that systems give to programs which ask for any."""

_REQUEST_LIMIT: Final = 8 << 20
_log = logging.getLogger(__name__)


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _ChatRequest(msgspec.Struct, frozen=True):
    messages: list[Message]
    stream: bool = False
    stream_options: _StreamOptions | None = None


class ChatExchange:
    """The chat of one episode: the server's requests on one side, the player on the other.

    `inbox` holds, in order, the messages of each new request and all else that the player gets
    through it (the episode's end).
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._asked: list[Message] | None = None
        self._answer: asyncio.Future[str | None] | None = None
        self._closed = False

    async def ask(self, messages: list[Message]) -> str | None:
        """The player's reply to a request, or None if the episode is closed."""
        if self._closed:
            return None
        if self._answer is None or messages != self._asked:
            self._refuse_pending()
            self._asked = messages
            self._answer = asyncio.get_running_loop().create_future()
            self.inbox.put_nowait(messages)
        return await asyncio.shield(self._answer)

    def reply(self, text: str) -> None:
        """Answer the latest request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)

    def close(self) -> None:
        """Refuse all pending and later requests."""
        self._closed = True
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


class ChatEndpoint:
    """An OpenAI-compatible chat server for the episodes opened on it, within one event loop.

    It listens where the route to an environment server begins, on a port of its rank if that is
    free. After a kill the next process has it again, and refuses the episodes that servers still
    play for the last one: they would ask for half an hour, and too many calls at once stop a server
    for good.
    """

    def __init__(self) -> None:
        self._exchanges: dict[str, ChatExchange] = {}
        self._runner: web.AppRunner | None = None
        self._addresses: dict[str, str] = {}
        self._starting = asyncio.Lock()

    def open(self) -> ChatExchange:
        """A new exchange under a new key."""
        key = secrets.token_hex(8)
        exchange = self._exchanges[key] = ChatExchange(key)
        return exchange

    def close_exchange(self, exchange: ChatExchange) -> None:
        """End an exchange (idempotent); its late requests are refused."""
        exchange.close()
        self._exchanges.pop(exchange.key, None)

    async def base_url(self, exchange: ChatExchange, server: str) -> str:
        """Under which URL `server` reaches `exchange`; starts listening where need be."""
        host = await route_address(server)
        async with self._starting:
            address = self._addresses.get(host)
            if address is None:
                address = self._addresses[host] = await self._listen(host)
        return f"http://{address}/{exchange.key}/v1"

    async def close(self) -> None:
        """Refuse all requests and stop listening (idempotent)."""
        for exchange in list(self._exchanges.values()):
            self.close_exchange(exchange)
        runner, self._runner = self._runner, None
        self._addresses.clear()
        if runner is not None:
            await runner.cleanup()

    async def _listen(self, host: str) -> str:
        if self._runner is None:
            app = web.Application(client_max_size=_REQUEST_LIMIT)
            app.router.add_post("/{key}/v1/chat/completions", self._chat)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await self._runner.setup()
        port = FIRST_PORT + int(os.environ.get("RANK", "0"))
        try:
            try:
                await web.TCPSite(self._runner, host, port, backlog=1024).start()
            except OSError:  # another process has it
                await web.TCPSite(self._runner, host, 0, backlog=1024).start()
        except OSError as error:
            raise ConfigurationError(
                f"the graded channel cannot listen on {host} ({error.strerror}): the environment "
                "servers must be able to reach this machine there"
            ) from error
        port = self._runner.addresses[-1][1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _log.info("graded channel listens on %s", address)
        return address

    async def _chat(self, request: web.Request) -> web.Response:
        exchange = self._exchanges.get(request.match_info["key"])
        if exchange is None:
            return _error(404, "no open episode has this key")
        try:
            chat = _CHAT_REQUEST.decode(await request.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, f"not a chat completion request: {error}")
        text = await exchange.ask(chat.messages)
        if text is None:
            return _error(404, "this episode is closed")
        if not chat.stream:
            return _json(_completion(chat, text))
        with_usage = chat.stream_options is not None and chat.stream_options.include_usage
        return web.Response(body=_events(chat, text, with_usage), headers=_EVENT_STREAM)


async def route_address(server: str) -> str:
    """The local address from which packets to `server` leave, which is where it can answer to.

    Raises: `InfrastructureError` if the server's name does not resolve or no route leads to it.
    """
    url = URL(server)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(str(url.host), url.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # a datagram socket: chooses the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InfrastructureError(
            f"no route to {server} ({error}); check the host name in ENVIRONMENT_SERVER_URLS",
            server=server,
        ) from error


def _usage(chat: _ChatRequest, text: str) -> dict[str, int]:
    # Estimates: tokens are the sampler's business, and the server only adds these up.
    prompt = sum(len(message["content"]) for message in chat.messages) // 4
    reply = len(text) // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def _completion(chat: _ChatRequest, text: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    return {
        **_head("chat.completion"),
        "choices": [choice],
        "usage": _usage(chat, text),
    }


def _events(chat: _ChatRequest, text: str, with_usage: bool) -> bytes:
    head = _head("chat.completion.chunk")
    delta = {"role": "assistant", "content": text}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if with_usage:
        chunks.append({**head, "choices": [], "usage": _usage(chat, text)})
    # ASCII only: some clients split the stream at every Unicode line separator.
    lines = ["data: " + json.dumps(chunk, separators=(",", ":")) for chunk in chunks]
    return "\n\n".join([*lines, "data: [DONE]", ""]).encode("ascii")


def _head(kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-" + secrets.token_hex(6),
        "object": kind,
        "created": int(time.time()),
        "model": MODEL_NAME,
    }


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=json.dumps(body).encode("ascii"), status=status, content_type="application/json"
    )


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "code": status}
    return _json({"error": error}, status)


_CHAT_REQUEST: Final = msgspec.json.Decoder(_ChatRequest)
_EVENT_STREAM: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
