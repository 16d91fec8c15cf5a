"""A chat endpoint that says what a test wants, and remembers what it was asked."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

Reply = Callable[[dict[str, Any], int], web.StreamResponse | Awaitable[web.StreamResponse]]


def streamed(text: str, usage: dict[str, Any] | None = None) -> web.Response:
    """A streamed completion in pieces of one character."""
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in text]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage is not None:
        events.append({"choices": [], "usage": usage})
    data = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    return web.Response(body=data + b"data: [DONE]\n\n", content_type="text/event-stream")


def whole(text: str, usage: dict[str, Any] | None = None) -> web.Response:
    """A completion that is not streamed."""
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage})


def lowest_legal_id(request: dict[str, Any]) -> str:
    """The first action on offer in the latest turn."""
    return request["messages"][-1]["content"].partition("Legal Actions:\n")[2].split(" ", 1)[0]


class ChatStub:
    """Endpoints `url(name)`, each answering by its own `Reply`.

    Attributes:
        requests: bodies received, by endpoint.
        headers: headers of the latest request, by endpoint.
        latest: the latest request of all, for replies that write as they please.
    """

    latest: web.Request

    def __init__(self) -> None:
        self.requests: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.headers: dict[str, dict[str, str]] = {}
        self._replies: dict[str, Reply] = {}
        self._root = ""

    def url(self, name: str, reply: Reply) -> str:
        """Base URL of a model that answers request number n (from 0) with `reply(request, n)`."""
        self._replies[name] = reply
        return f"{self._root}/{name}/v1"

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.latest = request
        name = request.match_info["name"]
        body = orjson.loads(await request.read())
        self.requests[name].append(body)
        self.headers[name] = {key.lower(): value for key, value in request.headers.items()}
        reply = self._replies[name](body, len(self.requests[name]) - 1)
        return await reply if asyncio.iscoroutine(reply) else reply


@asynccontextmanager
async def chat_stub() -> AsyncIterator[ChatStub]:
    """A running stub."""
    stub = ChatStub()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{name}/v1/chat/completions", stub._chat)
    async with TestServer(app) as server:
        stub._root = str(server.make_url("")).rstrip("/")
        yield stub
