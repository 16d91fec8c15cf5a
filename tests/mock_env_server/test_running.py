"""The server as a process, and requests that it refuses and the real one does not."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from typer.testing import CliRunner

from miner.games import game_named
from mock_env_server.__main__ import app
from mock_env_server.app import MAX_BODY_BYTES
from mock_env_server.quirks import Quirk
from mock_env_server.running import running_server
from tests.mock_env_server.chat_stub import ChatStub
from tests.mock_env_server.http import evaluate, new_episode, post
from tests.served import serve_in_thread

WIDE = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}


async def test_a_process_announces_itself_serves_and_ends_in_order() -> None:
    with running_server("correct", "--fault", "http_503=1", "--fault-path", "/stop") as server:
        assert server.log.read_text() == (
            f"mock environment server listening on {server.base_url} (mode correct)\n"
        )
        episode_id = await new_episode(server.base_url)
        status, _ = await post(server.base_url, "/stop", {"episode_id": episode_id})
        assert status == 503
        server.process.terminate()
        assert server.process.wait(30) == 0


async def test_sigterm_lets_a_request_in_progress_finish(model: ChatStub) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def hold(request: object, n: int) -> web.Response:
        asked.set()
        await let_go.wait()
        return web.Response(status=400)

    with running_server() as server:
        graded = asyncio.create_task(evaluate(server.base_url, model.url("m", hold)))
        await asked.wait()
        server.process.terminate()
        let_go.set()
        assert (await graded)["error"].startswith("[API_ERROR]")
        assert server.process.wait(30) == 0


async def test_sigterm_does_not_wait_for_a_search() -> None:
    othello, first_move = game_named("othello").task_ids[0], "19"  # its searches take seconds
    with running_server() as server:
        episode_id = await new_episode(server.base_url, othello, 0, "mcts")
        body = {"action": first_move, "episode_id": episode_id}
        steps = [asyncio.create_task(post(server.base_url, "/step", body)) for _ in range(2)]
        # One of the two is refused as not_your_turn: the search of the other has begun.
        _, searching = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        assert len(searching) == 1
        server.process.terminate()
        assert server.process.wait(30) == 0
        with pytest.raises(aiohttp.ClientError):
            await searching.pop()


def test_a_server_that_cannot_start_gives_the_reason() -> None:
    with (
        serve_in_thread() as url,
        pytest.raises(RuntimeError, match=r"cannot listen on 127\.0\.0\.1:\d+.*--port 0"),
        running_server("faithful", "--port", url.rpartition(":")[2]),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "earthquake=1"], "forget_episode"),
        (["--fault", "hang"], "NAME=RATE"),
        (["--fault", "hang=2"], "--fault hang: input should be less than or equal to 1, not '2'"),
        (["--fault", "hang=0.6", "--fault", "http_500=0.6"], "Invalid value: rates add up to more"),
        (["--fault-path", "/admin/faults"], "value: --fault-path: path '/admin/faults': expected"),
        (["--quirks", "slow"], "choose from block, deadlock, stragglers, or all"),
        (["--latency", "fast"], "'--latency'"),
        (["--latency", "-1"], "--latency"),
        (["--mode", "nice"], "faithful"),
        (["--restart-after", "0"], "--restart-after: input should be greater than or equal to 1"),
    ],
)
def test_wrong_options_are_explained(options: list[str], said: str) -> None:
    finished = CliRunner().invoke(app, options, env=WIDE)
    assert finished.exit_code == 2
    assert said in " ".join(finished.output.replace("│", " ").split())


def test_help_names_every_fault_and_quirk() -> None:
    said = CliRunner().invoke(app, ["--help"], env=WIDE).output
    for name in ("faithful", "correct", *Quirk, "drop_reply", "huge_body"):
        assert name in said


async def test_a_game_that_only_the_real_server_has(server: str) -> None:
    status, document = await post(server, "/reset", {"task_id": 1_100_000_000, "seed": 0})
    assert status == 500
    assert "1100000000" in document["detail"]


async def test_a_body_beyond_the_bound(server: str) -> None:
    async with aiohttp.ClientSession(server) as http:
        async with http.post("/step", data=b"x" * (MAX_BODY_BYTES + 2**20)) as response:
            assert response.status == 413
        async with http.get("/health") as response:
            assert await response.json() == {"status": "ok"}
