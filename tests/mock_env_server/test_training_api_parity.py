"""/reset, /step, /state, /stop and /call against what the real server answered."""

import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.mock_env_server import recordings
from tests.recordings import load
from tests.searches import searches_of

ROWS = load("train_api.jsonl")
EPISODES = [row for row in ROWS if "group" not in row]
GROUPS = {row["group"]: row for row in ROWS if "group" in row}
EXTRA_METHODS = {"decode_task_id", "create_game", "api_key", "_parse_action"}
"""Helpers of the real server that happen to be callable; no client needs them."""
_ID = re.compile(r"<EPISODE_ID(?:_\d+)?>")


@pytest.fixture(autouse=True)
def _quick_searches() -> Iterator[None]:
    """Random games against MCTS come up; how well it plays is not what is compared here."""
    with searches_of(2, 1):
        yield


class Replay:
    """Repeats recorded calls, putting this server's episode ids in the place of the recorded."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._ids: dict[str, str] = {}

    async def answer(self, call: dict[str, Any]) -> tuple[int, Any]:
        """Status and document this server gives to a recorded call."""
        if "request_raw" in call:
            body = call["request_raw"]
        elif call["request"] is None:
            body = None
        else:
            text = orjson.dumps(call["request"]).decode()
            body = _ID.sub(lambda match: self._ids[match[0]], text)
        request = self._http.request(
            call["method"],
            call["path"],
            data=body,
            headers={"content-type": "application/json"},
            allow_redirects=False,
        )
        async with request as response:
            text = await response.text()
        document = orjson.loads(text) if text else ""
        self._learn_ids(call["response"], document)
        for recorded, ours in self._ids.items():
            text = text.replace(ours, recorded)
        return response.status, orjson.loads(text) if text else ""

    def _learn_ids(self, recorded: Any, ours: Any) -> None:
        if isinstance(recorded, dict) and isinstance(recorded.get("result"), dict):
            name = recorded["result"].get("episode_id")
            if isinstance(name, str) and _ID.fullmatch(name) and name not in self._ids:
                self._ids[name] = ours["result"]["episode_id"]


async def replay(url: str, calls: list[dict[str, Any]]) -> Iterator[tuple[dict, int, Any]]:
    async with aiohttp.ClientSession(url) as http:
        player = Replay(http)
        for call in calls:
            yield call, *(await player.answer(call))


@pytest.mark.parametrize(
    "row", EPISODES, ids=lambda row: f"{row['task_id']}-{row['seed']}-{row['policy']}"
)
async def test_episode(server: str, row: dict[str, Any]) -> None:
    async for call, status, document in replay(server, row["calls"]):
        assert status == call["status"]
        assert recordings.comparable(document) == recordings.comparable(call["response"])


EXACT_GROUPS = sorted(
    name for name, row in GROUPS.items() if not row.get("shape_only") and name != "routes"
)


@pytest.mark.parametrize("name", EXACT_GROUPS)
async def test_error_shapes(server: str, name: str) -> None:
    calls = [call for call in GROUPS[name]["calls"] if playable(call)]
    assert calls
    async for call, status, document in replay(server, calls):
        assert status == call["status"], call
        assert recordings.comparable(document) == recordings.comparable(call["response"]), call


def playable(call: dict[str, Any]) -> bool:
    """True if this server claims to know the method and the game of a call."""
    request = call["request"] if isinstance(call["request"], dict) else {}
    if request.get("method") in EXTRA_METHODS or call["path"].strip("/") in EXTRA_METHODS:
        return False
    return request.get("task_id") != 1e22 and request.get("episode_id") != "<EPISODE_ID_7>"


@pytest.mark.parametrize("name", sorted(n for n, row in GROUPS.items() if row.get("shape_only")))
async def test_what_is_missing_is_drawn_at_random(server: str, name: str) -> None:
    async for call, status, document in replay(server, GROUPS[name]["calls"]):
        assert status == call["status"]
        assert recordings.shape(document) == recordings.shape(call["response"])
        asked = call["request"] if isinstance(call["request"], dict) else {}
        info = document["result"]["info"]
        given = {key: value for key, value in asked.items() if key != "opponent" and value}
        assert given.items() <= info.items()
        assert info["opponent_type"] == asked.get("opponent", "mcts")


async def test_routes(server: str) -> None:
    async for call, status, document in replay(server, GROUPS["routes"]["calls"]):
        assert status == call["status"], call
        if call["path"] == "/methods":
            assert actor_methods(document) == actor_methods(call["response"])
        else:
            assert document == call["response"], call


def actor_methods(document: dict[str, Any]) -> dict[str, list[str]]:
    """Names of the API's methods, each with its parameters' names."""
    return {
        method["name"]: re.findall(r"(?:\((?:self, )?|, )(\w+)(?=[:=,)])", method["signature"])
        for method in document["methods"]
        if method["source"] == "Actor"
    }
