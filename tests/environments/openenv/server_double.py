"""An OpenEnv server whose every message a test chooses, in this process."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from miner.config.channel_settings import OpenEnvSettings
from miner.environments.openenv.codec import codec_for
from miner.environments.openenv.environment import OpenEnvSource
from miner.environments.openenv.server import OpenEnvServer

Json = dict[str, Any]

TEXT_ACTION = {
    "title": "SayAction",
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}},
    "required": ["message"],
}
CLOSE = "close"
HANG = "hang"


def observation(text: str = "say", *, reward: Any = None, done: Any = False, **fields: Any) -> Json:
    """A reply to reset or step."""
    return {
        "type": "observation",
        "data": {"observation": {"text": text, **fields}, "reward": reward, "done": done},
    }


def error(code: str, message: str = "no", **data: Any) -> Json:
    """A refusal."""
    return {"type": "error", "data": {"message": message, "code": code, **data}}


@dataclass
class Double:
    """A server with `capacity` sessions.

    `answer(kind, data, turn)` gives the reply: an object, a text as it is, bytes, `CLOSE`, or
    `HANG`. `turn` counts the steps of the session, 0 for its reset.
    """

    answer: Callable[[str, Json, int], Any]
    schema: Json = field(default_factory=lambda: TEXT_ACTION)
    capacity: int = 1000
    tells_capacity: bool = True
    on_connect: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None
    url: str = ""
    asked: list[tuple[str, Json]] = field(default_factory=list)
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    connections: int = 0
    pong: asyncio.Event = field(default_factory=asyncio.Event)
    most_sessions: int = 0
    _sessions: int = 0

    async def ws(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0, autoping=False)
        await socket.prepare(request)
        self.connections += 1
        if self._sessions == self.capacity:
            most = {"max_sessions": self.capacity} if self.tells_capacity else {}
            await socket.send_json(error("CAPACITY_REACHED", "full", **most))
            await socket.close()
            return socket
        self._sessions += 1
        self.most_sessions = max(self.most_sessions, self._sessions)
        self.sockets.add(socket)
        try:
            if self.on_connect:
                await self.on_connect(socket)
            await self._talk(socket)
        finally:
            self._sessions -= 1
            self.sockets.discard(socket)
        return socket

    async def _talk(self, socket: web.WebSocketResponse) -> None:
        turns = itertools.count(1)
        async for message in socket:
            if message.type is WSMsgType.PONG:
                self.pong.set()
            if message.type is not WSMsgType.TEXT:
                continue
            words = json.loads(message.data)
            kind, data = words["type"], words.get("data", {})
            if kind == "close":
                await socket.close()
                return
            if kind == "state":
                await socket.send_json({"type": "state", "data": {}})
                continue
            self.asked.append((kind, data))
            reply = self.answer(kind, data, next(turns) if kind == "step" else 0)
            if reply == HANG:
                continue
            if reply == CLOSE:
                assert socket._req is not None
                assert socket._req.transport is not None
                socket._req.transport.abort()
                return
            if isinstance(reply, bytes):
                await socket.send_bytes(reply)
            else:
                await socket.send_str(reply if isinstance(reply, str) else json.dumps(reply))


@asynccontextmanager
async def serving(double: Double, port: int = 0) -> AsyncIterator[Double]:
    """The double, listening; its sockets are cut at the end, as by a kill."""
    app = web.Application()
    app.router.add_get("/ws", double.ws)
    app.router.add_get("/health", _reply({"status": "healthy"}))
    app.router.add_get("/schema", _reply({"action": double.schema}))
    app.router.add_get("/metadata", _reply({"name": "double", "description": ""}))
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    double.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield double
    finally:
        for socket in tuple(double.sockets):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()
        await runner.cleanup()


def _reply(body: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(body)

    return handle


@asynccontextmanager
async def source_of(*doubles: Double, **settings: Any) -> AsyncIterator[OpenEnvSource]:
    """A source on running doubles, without a look at them."""
    chosen = OpenEnvSettings(**{"reply_seconds": 5.0, **settings})
    servers = {
        double.url: OpenEnvServer(double.url, reply_seconds=chosen.reply_seconds)
        for double in doubles
    }
    source = OpenEnvSource(servers, chosen, codec_for(doubles[0].schema, chosen))
    try:
        yield source
    finally:
        await source.close()
