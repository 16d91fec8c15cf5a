"""Double of E2B's service in this process: sandboxes that run code, and fail as they are told.

The wire is E2B's: `POST /v2/sandboxes`, `POST /execute` (a JSON object a line), `GET /health`,
`DELETE /sandboxes/{id}`. Code is not run but answered from a table.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from aiohttp import web
from aiohttp.test_utils import TestServer

KEY = "e2b_0123456789abcdef"


def printed(text: str) -> list[dict[str, Any]]:
    """What a run sends that prints `text`."""
    return [{"type": "stdout", "text": text, "timestamp": 0}]


def raised(name: str, value: str, traceback: str = "in line 1") -> list[dict[str, Any]]:
    """What a run sends that raises."""
    return [{"type": "error", "name": name, "value": value, "traceback": traceback}]


@dataclass
class E2BDouble:
    """E2B, with faults.

    Attributes:
        runs: lines to send for each code; other code prints nothing.
        create_status: status of the next sandboxes' creation, if not 201.
        hang: code at which the sandbox hangs; "create" hangs earlier.
        dies_at: code at which the sandbox is killed after half of an answer.
        healthy: whether sandboxes answer beside a run.
    """

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    create_status: int = 201
    hang: str = ""
    dies_at: str = ""
    healthy: bool = True
    alive: set[str] = field(default_factory=set)
    created: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    at_once: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def create(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers["X-API-Key"])
        if self.hang == "create":
            await self.held.wait()
        if self.create_status != 201:
            return web.json_response(
                {"code": self.create_status, "message": "no"}, status=self.create_status
            )
        self.created.append(await request.json())
        name = f"box{len(self.created)}"
        self.alive.add(name)
        self.at_once = max(self.at_once, len(self.alive))
        box = {"templateID": "t", "sandboxID": name, "clientID": "c", "envdVersion": "0.5.0"}
        return web.json_response(box, status=201)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        code = (await request.json())["code"]
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        lines = [*self.runs.get(code, []), {"type": "number_of_executions", "execution_count": 1}]
        if code == self.dies_at:
            self.alive.discard(request.headers["E2b-Sandbox-Id"])
            await response.write(b'{"type": "stdout", "te')
            assert request.transport is not None
            request.transport.abort()
            return response
        if code == self.hang:
            await self.held.wait()
        for line in lines:
            await response.write(json.dumps(line).encode() + b"\n")
        return response

    async def health(self, request: web.Request) -> web.Response:
        alive = request.headers["E2b-Sandbox-Id"] in self.alive
        return web.Response(status=204 if alive and self.healthy else 502)

    async def kill(self, request: web.Request) -> web.Response:
        self.alive.discard(request.match_info["name"])
        return web.Response(status=204)


@asynccontextmanager
async def e2b_double(**faults: Any) -> AsyncIterator[E2BDouble]:
    """A double, where E2B's client takes E2B to be."""
    double = E2BDouble(**faults)
    app = web.Application()
    app.add_routes(
        [
            web.post("/v2/sandboxes", double.create),
            web.post("/execute", double.execute),
            web.get("/health", double.health),
            web.delete("/sandboxes/{name}", double.kill),
        ]
    )
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        with patch.dict(os.environ, {"E2B_API_URL": url, "E2B_SANDBOX_URL": url}):
            yield double
        double.held.set()
