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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import orjson
import typer
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from rich.table import Table

from mock_env_server.running import running_server

Post = Callable[[str, dict], Awaitable[dict]]
Play = Callable[[Post, int], Awaitable[object]]
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEGAL = re.compile(r"Legal Actions:\n(\d+)")


@dataclass
class Load:
    """What one run has measured: `play`, over and over, by `players` at a time."""

    name: str
    play: Play
    players: int
    episodes: int = 0
    latencies_s: list[float] = field(default_factory=list)

    async def run(self, post: Post, pid: int, seconds: float) -> list[str]:
        """Play for so long; the run as cells of the table."""

        async def timed(path: str, document: dict) -> dict:
            began = time.perf_counter()
            answer = await post(path, document)
            self.latencies_s.append(time.perf_counter() - began)
            return answer

        async def player(task_id: int) -> None:
            while time.perf_counter() < started + seconds:
                await self.play(timed, task_id)
                self.episodes += 1
                task_id += self.players

        cpu, started = _cpu_s(pid), time.perf_counter()
        await asyncio.gather(*map(player, range(self.players)))
        wall, cpu = time.perf_counter() - started, _cpu_s(pid) - cpu
        requests = len(self.latencies_s)
        return [
            f"{self.name}, {self.players}",
            f"{self.episodes / wall:,.0f}",
            f"{requests / wall:,.0f}",
            *(f"{1000 * late:.1f}" for late in np.percentile(self.latencies_s, (50, 99))),
            f"{1000 * cpu / requests:.3f}",
            f"{self.episodes / cpu:,.0f}",
        ]


async def play_stepped(post: Post, task_id: int, *, stop: bool = True) -> str:
    """One whole episode that always bids the lowest card; returns its id."""
    reset = {"task_id": task_id, "seed": task_id, "opponent": "random"}
    result = (await post("/reset", reset))["result"]
    episode_id = result["episode_id"]
    hand = f"P{task_id % 2} hand: "
    while not result["done"]:
        card = result["observation"].partition(hand)[2].split(" ", 1)[0]
        step = {"action": str(int(card) - 1), "episode_id": episode_id}
        result = (await post("/step", step))["result"]
    if stop:
        await post("/stop", {"episode_id": episode_id})
    return episode_id


async def instant_model(request: web.Request) -> web.Response:
    """A chat endpoint that names the first legal action at once."""
    asked = orjson.loads(await request.read())["messages"][-1]["content"]
    delta = {"choices": [{"index": 0, "delta": {"content": _LEGAL.search(asked)[1]}}]}
    return web.Response(
        body=b"data: " + orjson.dumps(delta) + b"\n\ndata: [DONE]\n\n",
        content_type="text/event-stream",
    )


async def memory_per_episode(post: Post, pid: int, episodes: int) -> tuple[float, float]:
    """Bytes by which the process grows per finished episode: without /stop, then after it.

    Freed memory stays with the process, so the second number is taken from as many more episodes:
    they grow the process by nothing if /stop has freed the first ones.
    """

    async def play(count: int, offset: int) -> list[str]:
        return [await play_stepped(post, offset + i, stop=False) for i in range(count)]

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
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", instant_model)
    columns = ("episodes/s", "requests/s", "p50 ms", "p99 ms", "CPU ms/request", "episodes/CPU s")
    table = Table("load", *columns)
    connector = aiohttp.TCPConnector(limit=0)
    with running_server("faithful") as server:
        pid = server.process.pid
        async with (
            aiohttp.ClientSession(server.base_url, connector=connector) as http,
            TestServer(app) as chat,
        ):

            async def post(path: str, document: dict) -> dict:
                async with http.post(path, data=orjson.dumps(document)) as answer:
                    return orjson.loads(await answer.read())

            async def play_graded(post: Post, task_id: int) -> None:
                wanted = {"task_id": task_id, "seed": task_id, "opponent": "random"}
                model = {"model": "m", "base_url": str(chat.make_url("/v1")), "api_key": "none"}
                answer = await post("/evaluate", {**wanted, **model, "timeout": 180})
                if "error" in answer["result"]:
                    raise RuntimeError(answer["result"]["error"])

            held, left = await memory_per_episode(post, pid, episodes)
            await Load("warm-up", play_stepped, connections).run(post, pid, 1.0)
            for name, play in (("step", play_stepped), ("evaluate", play_graded)):
                table.add_row(*await Load(name, play, connections).run(post, pid, seconds))
    Console(width=120).print(table)
    print("CPU time is the server's. Run this on a quiet machine: contention inflates it too.")
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
