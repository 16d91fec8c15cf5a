"""The middleware that injects the faults of a `FaultPlan`.

Invariant: an empty plan touches nothing: the request goes straight to the application.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mock_env_server import wording
from mock_env_server.faults import FaultKind, FaultPlan

_PAD_CHUNK = b" " * 65536


class FaultMiddleware:
    """Wraps the whole application and injects the plan's faults.

    Args:
        app: the application.
        forget: called with the id of an episode to forget.
        forget_all: called on a restart.
        plan: the plan to begin with; assign `plan` to change it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        forget: Callable[[str], object],
        forget_all: Callable[[], None],
        plan: FaultPlan,
    ) -> None:
        self._app = app
        self._forget = forget
        self._forget_all = forget_all
        self.plan = plan

    @property
    def plan(self) -> FaultPlan:
        """The plan in force. Setting it resets the counts."""
        return self._plan

    @plan.setter
    def plan(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._idle = plan.idle
        self._counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._idle or scope["type"] != "http" or scope["path"] not in self._plan.paths:
            await self._app(scope, receive, send)
            return
        await self._disturb(scope, receive, send)

    async def _disturb(self, scope: Scope, receive: Receive, send: Send) -> None:
        plan, path = self._plan, scope["path"]
        self._counts[path] += 1
        kind, rng = plan.draw(path, self._counts[path])
        if plan.latency_ms:
            await asyncio.sleep(plan.latency_ms / 1000)
        if plan.restart_after and self._counts.total() % plan.restart_after == 0:
            self.injected["restart"] += 1
            self._forget_all()
            await _close_connection(scope, receive)
            return
        if kind is None:
            await self._app(scope, receive, send)
            return
        self.injected[kind] += 1
        await self._inject(kind, rng, scope, receive, send)

    async def _inject(
        self, kind: FaultKind, rng: random.Random, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if kind in _STATUS:
            answer = JSONResponse({"detail": wording.INJECTED_FAULT}, _STATUS[kind])
            await answer(scope, receive, send)
        elif kind is FaultKind.DROP_REQUEST:
            await _close_connection(scope, receive)
        elif kind is FaultKind.HANG:
            await _until_disconnected(receive)
        elif kind is FaultKind.FORGET_EPISODE:
            await self._app(scope, await self._forget_addressed(receive), send)
        else:
            status, body = await _reply_of(self._app, scope, receive)
            if kind is FaultKind.DROP_REPLY:
                await _close_connection(scope, receive)
            elif kind is FaultKind.HUGE_BODY:
                size = int(self._plan.huge_body_mib * 2**20)
                await _padded(status, body, size)(scope, receive, send)
            else:
                spoilt = _SPOILERS[kind](body, rng)
                await Response(spoilt, status, media_type="application/json")(scope, receive, send)

    async def _forget_addressed(self, receive: Receive) -> Receive:
        """Forget the episode a request is about; returns a `receive` that gives its body again."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if isinstance(document, dict):
            kwargs = document.get("kwargs")
            episode_id = (kwargs if isinstance(kwargs, dict) else document).get("episode_id")
            if isinstance(episode_id, str):
                self._forget(episode_id)
        return _replay(body, receive)


_STATUS = {FaultKind.HTTP_500: 500, FaultKind.HTTP_429: 429, FaultKind.HTTP_503: 503}


def _truncate(body: bytes, rng: random.Random) -> bytes:
    return body[: max(1, len(body) // 2)]


def _garbage(body: bytes, rng: random.Random) -> bytes:
    return b"<html>" + rng.randbytes(64)


def _wrong_types(body: bytes, rng: random.Random) -> bytes:
    """One field at any depth turned into something of another type."""
    document = orjson.loads(body or b"null")
    if not isinstance(document, dict):
        return b"7"
    holder, field = rng.choice(list(_fields(document)))
    holder[field] = 7 if isinstance(holder[field], str | dict | list) else {"unexpected": "object"}
    return orjson.dumps(document)


def _fields(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in document.items():
        yield document, name
        if isinstance(value, dict):
            yield from _fields(value)


_SPOILERS: dict[FaultKind, Callable[[bytes, random.Random], bytes]] = {
    FaultKind.TRUNCATED_JSON: _truncate,
    FaultKind.GARBAGE_JSON: _garbage,
    FaultKind.WRONG_TYPES: _wrong_types,
}


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close_connection(scope: Scope, receive: Receive) -> None:
    """Close the socket without an answer (`serving.Protocol` puts it into the scope)."""
    scope["state"]["transport"].abort()
    await _until_disconnected(receive)


async def _reply_of(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[int, bytes]:
    """Run the application and keep its answer."""
    status, parts = 500, []

    async def keep(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, keep)
    return status, b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _padded(status: int, body: bytes, size: int) -> Response:
    """The answer followed by spaces, valid JSON of at least `size` bytes."""
    chunks = max(1, -(-(size - len(body)) // len(_PAD_CHUNK)))

    async def pieces() -> AsyncIterator[bytes]:
        yield body
        for _ in range(chunks):
            yield _PAD_CHUNK

    length = {"content-length": str(len(body) + chunks * len(_PAD_CHUNK))}
    return StreamingResponse(pieces(), status, length, media_type="application/json")
