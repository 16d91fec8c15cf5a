"""How fast the mock environment server is: `python -m benchmarks.mock_env_server`.

Starts a server process and plays whole Goofspiel episodes against it over /reset, /step and
/stop, then graded episodes over /evaluate with a model that answers at once.
CPU time of the server is read from /proc, so this runs on Linux.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import aiohttp
import orjson
import typer
import uvloop
from aiohttp import web
from rich.console import Console
from rich.table import Table

from mock_env_server.running import running_server

Post = Callable[[str, dict], Awaitable[dict]]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Load:
    """What one run has measured."""

    name: str
    episodes: int = 0
    latencies_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    server_cpu_s: float = 0.0
    client_cpu_s: float = 0.0

    def row(self) -> list[str]:
        """The run as cells of the table."""
        requests = len(self.latencies_s)
        ordered = sorted(self.latencies_s)
        return [
            self.name,
            f"{self.episodes / self.wall_s:,.0f}",
            f"{requests / self.wall_s:,.0f}",
            f"{1000 * ordered[requests // 2]:.1f}",
            f"{1000 * ordered[requests * 99 // 100]:.1f}",
            f"{1000 * self.server_cpu_s / requests:.3f}",
            f"{1000 * self.client_cpu_s / requests:.3f}",
            f"{self.episodes / self.server_cpu_s:,.0f}",
            f"{requests / self.server_cpu_s:,.0f}",
        ]


async def play_stepped(post: Post, load: Load, task_id: int, *, stop: bool = True) -> str:
    """One whole episode that always bids the lowest card; returns its id."""

    async def timed(path: str, document: dict) -> dict:
        started = time.perf_counter()
        answer = await post(path, document)
        load.latencies_s.append(time.perf_counter() - started)
        return answer["result"]

    result = await timed("/reset", {"task_id": task_id, "seed": task_id, "opponent": "random"})
    episode_id = result["episode_id"]
    hand = f"P{task_id % 2} hand: "
    while not result["done"]:
        card = result["observation"].partition(hand)[2].split(" ", 1)[0]
        action = str(int(card) - 1)
        result = await timed("/step", {"action": action, "episode_id": episode_id})
    if stop:
        await timed("/stop", {"episode_id": episode_id})
    load.episodes += 1
    return episode_id


async def measured(load: Load, pid: int, work: Awaitable[None]) -> Load:
    """Do the work and note how long it took and what it cost."""
    server, client, started = _cpu_s(pid), time.process_time(), time.perf_counter()
    await work
    load.wall_s = time.perf_counter() - started
    load.server_cpu_s = _cpu_s(pid) - server
    load.client_cpu_s = time.process_time() - client
    return load


async def stepped_load(load: Load, post: Post, players: int, seconds: float) -> None:
    """Episodes over /step, `players` at a time."""
    deadline = time.perf_counter() + seconds

    async def player(index: int) -> None:
        task_id = index
        while time.perf_counter() < deadline:
            await play_stepped(post, load, task_id)
            task_id += players

    await asyncio.gather(*map(player, range(players)))


async def graded_load(load: Load, post: Post, model_url: str, players: int, seconds: float) -> None:
    """Graded episodes, `players` at a time."""
    deadline = time.perf_counter() + seconds

    async def player(index: int) -> None:
        task_id = index
        while time.perf_counter() < deadline:
            request = {
                "task_id": task_id,
                "seed": task_id,
                "model": "instant",
                "base_url": model_url,
                "api_key": "none",
                "opponent": "random",
                "timeout": 180,
            }
            started = time.perf_counter()
            answer = await post("/evaluate", request)
            load.latencies_s.append(time.perf_counter() - started)
            if "error" in answer["result"]:
                raise RuntimeError(answer["result"]["error"])
            load.episodes += 1
            task_id += players

    await asyncio.gather(*map(player, range(players)))


@asynccontextmanager
async def instant_model():
    """A chat endpoint that names the first legal action at once; yields its base URL."""
    line = re.compile(r"Legal Actions:\n(\d+)")

    async def chat(request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())["messages"][-1]["content"]
        delta = {"choices": [{"index": 0, "delta": {"content": line.search(asked)[1]}}]}
        return web.Response(
            body=b"data: " + orjson.dumps(delta) + b"\n\ndata: [DONE]\n\n",
            content_type="text/event-stream",
        )

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()


async def memory_per_episode(post: Post, pid: int, episodes: int) -> tuple[float, float]:
    """Bytes by which the process grows per finished episode: without /stop, then after it.

    Freed memory stays with the process, so the second number is taken from as many more episodes:
    they grow the process by nothing if /stop has freed the first ones.
    """

    async def play(count: int, offset: int) -> list[str]:
        load = Load("memory")
        return [await play_stepped(post, load, offset + i, stop=False) for i in range(count)]

    async def stop(finished: list[str]) -> None:
        for episode_id in finished:
            await post("/stop", {"episode_id": episode_id})

    await stop(await play(200, 0))  # what any first load leaves behind
    before = _resident(pid)
    finished = await play(episodes, 200)
    kept = _resident(pid)
    await stop(finished)
    await play(episodes, 200 + episodes)
    return (kept - before) / episodes, (_resident(pid) - kept) / episodes


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


async def run(connections: int, seconds: float, episodes: int) -> None:
    """All measurements, as a table on the terminal."""
    table = Table("load", "episodes/s", "requests/s", "p50 ms", "p99 ms")
    for column in ("server ms/req", "client ms/req", "ep./CPU s", "req./CPU s"):
        table.add_column(column)
    connector = aiohttp.TCPConnector(limit=0)
    with running_server("faithful") as server:
        pid = server.process.pid
        async with aiohttp.ClientSession(server.base_url, connector=connector) as http:

            async def post(path: str, document: dict) -> dict:
                async with http.post(path, data=orjson.dumps(document)) as answer:
                    return orjson.loads(await answer.read())

            held, left = await memory_per_episode(post, pid, episodes)
            await stepped_load(Load("warm-up"), post, connections, 1.0)
            load = Load(f"step, {connections}")
            work = stepped_load(load, post, connections, seconds)
            table.add_row(*(await measured(load, pid, work)).row())
            async with instant_model() as url:
                load = Load(f"evaluate, {connections}")
                work = graded_load(load, post, url, connections, seconds)
                table.add_row(*(await measured(load, pid, work)).row())
    Console(width=132).print(table)
    print("ms/req is CPU time. Run this on a quiet machine: contention inflates CPU times too.")
    print(f"growth per finished episode: {held:,.0f} bytes without /stop, {left:,.0f} after it")


def main(
    connections: Annotated[int, typer.Option(help="Episodes at the same time.")] = 32,
    seconds: Annotated[float, typer.Option(help="Duration of each load.")] = 5.0,
    episodes: Annotated[int, typer.Option(help="Episodes of the memory measurement.")] = 3000,
) -> None:
    """Measure the mock environment server."""
    uvloop.run(run(connections, seconds, episodes))


if __name__ == "__main__":
    typer.run(main)
