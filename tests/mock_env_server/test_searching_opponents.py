"""MCTS opponents think beside the server; with the `block` quirk they think in its place."""

import asyncio
from collections.abc import Iterator

import aiohttp
import orjson
import pytest

from mock_env_server.quirks import Quirk
from mock_env_server.settings import ServerSettings
from tests.mock_env_server.chat_stub import ChatStub, lowest_legal_id, streamed
from tests.mock_env_server.http import evaluate, new_episode, result
from tests.searches import searches_of
from tests.served import serve_in_thread

LIARS_DICE = 100_000_000


@pytest.fixture(autouse=True)
def _long_searches() -> Iterator[None]:
    """A move takes about a second, in which a healthy server answers hundreds of requests."""
    with searches_of(60_000, 20):
        yield


async def first_answered(server: str) -> set[str]:
    """Which request is answered first: a step against MCTS, or a later one to /health."""
    episode_id = await new_episode(server, LIARS_DICE, 0, "mcts")
    body = orjson.dumps({"action": "0", "episode_id": episode_id})
    host, port = server.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /step HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    step = asyncio.create_task(reader.readline(), name="step")
    health = asyncio.create_task(get_health(server), name="health")
    done, _ = await asyncio.wait({step, health}, return_when=asyncio.FIRST_COMPLETED)
    assert (await step).startswith(b"HTTP/1.1 200")
    await health
    writer.close()
    return {task.get_name() for task in done}


async def get_health(server: str) -> None:
    async with aiohttp.ClientSession(server) as http, http.get("/health") as response:
        assert response.status == 200


async def test_health_is_answered_while_an_opponent_thinks(server: str) -> None:
    assert await first_answered(server) == {"health"}


async def test_block_makes_everything_wait() -> None:
    with serve_in_thread(ServerSettings(quirks=frozenset({Quirk.BLOCK}))) as server:
        assert "step" in await first_answered(server)


async def test_other_episodes_go_on_while_an_opponent_thinks(server: str, model: ChatStub) -> None:
    episode_id = await new_episode(server, LIARS_DICE, 0, "mcts")
    thinking = asyncio.create_task(result(server, "/step", action="0", episode_id=episode_id))
    url = model.url("m", lambda request, n: streamed(lowest_legal_id(request)))
    graded = await evaluate(server, url)
    assert graded["extra"]["final_return"] is not None
    assert not thinking.done()
    step = await thinking
    assert step["info"]["last_opponent_action"] is not None
    assert "error" not in step["info"]


async def test_a_step_during_the_opponents_turn_is_refused(server: str) -> None:
    episode_id = await new_episode(server, LIARS_DICE, 0, "mcts")
    steps = await asyncio.gather(
        *(result(server, "/step", action="0", episode_id=episode_id) for _ in range(2))
    )
    accepted, refused = sorted(steps, key=lambda step: "error" in step["info"])
    assert "error" not in accepted["info"]
    assert refused["info"]["error"]["type"] == "not_your_turn"
    assert (refused["reward"], refused["done"]) == (0.0, False)
    state = await result(server, "/state", episode_id=episode_id)
    assert state["observation"] == accepted["observation"]
