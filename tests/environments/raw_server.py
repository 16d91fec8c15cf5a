"""A server that answers every request with bytes the test chose, and remembers what it was sent."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

CLOSE = b""
"""A reply that closes the connection without an answer."""


@dataclass
class RawServer:
    """`answer(path, body)` gives the whole HTTP reply; None never answers."""

    answer: Callable[[str, bytes], bytes | None]
    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    connections: int = 0
    arrivals: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [
            int(line.split(":")[1])
            for line in head.split("\r\n")
            if line.lower().startswith("content-length")
        ]
        body = await reader.readexactly(lengths[0]) if lengths else b""
        path = head.split(" ")[1]
        self.requests.append((path, json.loads(body or b"{}")))
        self.arrivals.put_nowait(path)
        reply = self.answer(path, body)
        if reply is None:
            await reader.read()  # until the client gives up
            return False
        writer.write(reply)
        await writer.drain()
        head_sent, _, data = reply.partition(b"\r\n\r\n")
        return head_sent.endswith(b"content-length: %d" % len(data))


@asynccontextmanager
async def raw_server(
    answer: Callable[[str, bytes], bytes | None], port: int = 0
) -> AsyncIterator[RawServer]:
    """A running `RawServer` on the loopback address, on a free port unless one is named."""
    server = RawServer(answer)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", port)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for writer in server.writers:
            writer.close()
        await asyncio.sleep(0)


def http(body: object, status: int = 200) -> bytes:
    """A whole HTTP reply; `body` is sent as it is if bytes, else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


STOPPED = http({"status": "success", "result": {"status": "ok", "stopped": True}})
"""Answer of /stop."""


def step_result(**changes: Any) -> dict[str, Any]:
    """A well-formed reply of /reset or /step for task 0, seed 0; `changes` go to the result."""
    info = {
        "task_id": 0,
        "seed": 0,
        "game_name": "goofspiel",
        "llm_player_id": 0,
        "opponent_type": "random",
        "step_count": 0,
        "cumulative_reward": 0.0,
    }
    info.update(changes.pop("info", {}))
    result = {
        "observation": "You are Player 0.",
        "reward": 0.0,
        "done": False,
        "truncated": False,
        "episode_id": "e1",
        "info": info,
    }
    return {"status": "success", "result": {**result, **changes}, "error": None}
