"""The shapes of the wire in a few calls of our own, for machines without the recordings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.mock_env_server.chat_stub import ChatStub, streamed
from tests.mock_env_server.http import evaluate, new_episode, post, result
from tests.served import serve_in_thread

RESULT = {"observation", "reward", "done", "truncated", "episode_id", "info"}
INFO = {
    "task_id",
    "seed",
    "game_name",
    "llm_player_id",
    "opponent_type",
    "step_count",
    "cumulative_reward",
}
OPENING = """Current State:
Current point card: 5
Remaining Point Cards: 1234678
P0 hand: 1 2 3 4 5 6 7 8\x20
P1 hand: 1 2 3 4 5 6 7 8\x20
Win sequence:\x20
(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)
Player 0: 0 points, Player 1: 0 points\x20


"""
"""What task 0 with seed 0 shows first over /reset."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serve_in_thread() as url:
        yield url


async def test_reset_step_state_and_stop(server: str) -> None:
    reset = await result(server, "/reset", task_id=0, seed=0, opponent="random")
    assert reset.keys() == RESULT
    assert reset["info"].keys() == INFO
    assert OPENING in reset["observation"]
    episode = {"episode_id": reset["episode_id"]}
    step = await result(server, "/step", action="6", **episode)
    assert step["info"].keys() == INFO | {"last_opponent_action"}
    assert "P0 hand: 1 2 3 4 5 6 8 \n" in step["observation"]
    assert await result(server, "/state", **episode) == step
    assert await result(server, "/stop", **episode) == {"status": "ok", "stopped": True, **episode}
    again = await result(server, "/stop", **episode)
    assert (again["stopped"], again.keys()) == (False, {"status", "stopped", "message"})


async def test_an_invalid_action_repeats_the_turn(server: str) -> None:
    episode_id = await new_episode(server, task_id=4, seed=1)
    for action in ("no number", "99", "16"):
        step = await result(server, "/step", action=action, episode_id=episode_id)
        assert (step["reward"], step["done"]) == (-0.01, False)
        assert step["info"]["step_count"] == 0
        assert step["info"]["error"].keys() == {"type", "message", "retryable"}
        assert step["info"]["error"]["type"] == "invalid_action"
        assert "  9 -> [P1]Bid: 10\n  ... and 6 more\n" in step["observation"]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/step", {"action": "0"}, "no_episode_id"),
        ("/step", {"action": "0", "episode_id": "x"}, "episode_not_found"),
        ("/state", {}, "no_episode_id"),
        ("/state", {"episode_id": 5}, "episode_not_found"),
    ],
)
async def test_a_missing_episode(server: str, path: str, body: dict[str, Any], kind: str) -> None:
    lost = await result(server, path, **body)
    assert lost.keys() == RESULT
    assert (lost["done"], lost["truncated"], lost["reward"]) == (True, True, 0.0)
    assert lost["episode_id"] == body.get("episode_id")
    assert lost["info"]["error"]["type"] == kind
    assert lost["info"]["game_name"] is None


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", {"episode_id": "x"}, 500),
        ("/step", {"action": "0", "episode_id": ["x"]}, 500),
        ("/step", {"action": "0", "episode_id": "x", "extra": 1}, 500),
        ("/reset", {"task_id": "abc"}, 500),
        ("/reset", {"task_id": 0, "seed": 4_294_967_196}, 500),
        ("/reset", {"task_id": 0, "seed": "5"}, 500),
        ("/reset", {"task_id": 1_100_000_000, "seed": 0}, 500),
        ("/reset", {"args": [0], "kwargs": {"task_id": 0}}, 500),
        ("/reset", {"args": 5}, 500),
        ("/evaluate", {"timeout": 0}, 500),
        ("/evaluate", {"seed": "1"}, 500),
        ("/evaluate", {"max_tokens": 5}, 500),
        ("/call", {"method": "foo"}, 404),
        ("/call", {"args": []}, 422),
        ("/foo", {}, 404),
    ],
)
async def test_refusals(server: str, path: str, body: dict[str, Any], status: int) -> None:
    got, document = await post(server, path, body)
    assert got == status
    assert document.keys() == {"detail"}
    assert document["detail"]


@pytest.mark.parametrize("value", [3, None, True, 2.0, ["3"]])
async def test_an_action_that_is_no_string_is_refused(server: str, value: Any) -> None:
    body = {"action": value, "episode_id": await new_episode(server)}
    assert (await post(server, "/step", body))[0] == 500
    assert (await result(server, "/state", episode_id=body["episode_id"]))["info"][
        "step_count"
    ] == 0


async def test_a_body_beyond_the_bound_is_refused(server: str) -> None:
    async with aiohttp.ClientSession(server) as http:
        async with http.post("/step", data=b"x" * (5 * 2**20)) as response:
            assert response.status == 413
        async with http.get("/health") as response:
            assert await response.json() == {"status": "ok"}


async def test_three_unparsable_replies_score_zero_without_an_error(
    server: str, model: ChatStub
) -> None:
    graded = await evaluate(server, model.url("m", lambda request, n: streamed("no idea")))
    assert graded.keys() == {"task_name", "score", "success", "extra"}
    assert (graded["score"], graded["success"]) == (0.0, False)
    extra = graded["extra"]
    assert extra["final_return"] is None
    assert extra["all_returns"] is None
    roles = [message["role"] for message in extra["conversation"]]
    assert roles == ["system", "user"] + ["assistant", "user"] * 3
    assert [entry["player_id"] for entry in extra["action_history"]] == [-1]
    assert extra["observation"].startswith("Current point card: 0\n")
