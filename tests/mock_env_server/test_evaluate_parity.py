"""/evaluate against what the real server answered, and asked the model."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.mock_env_server import recordings
from tests.mock_env_server.chat_stub import ChatStub, Reply, streamed
from tests.mock_env_server.http import post
from tests.recordings import load

EPISODES = load("evaluate.jsonl")
CASES = load("evaluate_errors.json")
HASTE = 40
"""By how much the time-outs are shorter here of the cases that waited for theirs."""


def scripted(replies: list[str], usage: dict[str, Any] | None) -> Reply:
    return lambda request, n: streamed(replies[n], usage)


def with_base_url(request: dict[str, Any], url: str) -> dict[str, Any]:
    """The recorded request to a model at `url` instead, unless it went astray on purpose."""
    if "kwargs" in request:
        return {**request, "kwargs": with_base_url(request["kwargs"], url)}
    old = request["base_url"]
    if old is None or not old.startswith("http://127.0.0.1:180"):
        return request
    return {**request, "base_url": url + ("/" if old.endswith("/") else "")}


@pytest.mark.parametrize("row", EPISODES, ids=lambda row: f"{row['task_id']}-{row['policy']}")
async def test_graded_episode(server: str, model: ChatStub, row: dict[str, Any]) -> None:
    usage = row["response"]["result"]["extra"]["usage"] if row["stub_sends_usage"] else None
    url = model.url("m", scripted([chat["reply"] for chat in row["chats"]], usage))
    status, document = await post(
        server, row["evaluate"]["path"], with_base_url(row["evaluate"]["request"], url)
    )
    assert status == row["status"]
    assert recordings.comparable(document) == recordings.comparable(row["response"])
    asked = [recordings.comparable(request) for request in model.requests["m"]]
    assert asked == [recordings.comparable(chat["request"]) for chat in row["chats"]]
    assert model.headers["m"]["authorization"] == row["chat_headers"]["authorization"]
    assert model.headers["m"]["content-type"] == row["chat_headers"]["content-type"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
async def test_failure_case(server: str, model: ChatStub, case: dict[str, Any]) -> None:
    hung = asyncio.Event()
    url = model.url("m", reply_of(case, hung))
    request = with_base_url(case["request"], url)
    waited = case["seconds"] > 1
    if waited:
        request = {**request, "timeout": request["timeout"] / HASTE}
    status, document = await post(server, case["path"], request)
    hung.set()
    assert status == case["status"]
    assert recordings.comparable(document) == recordings.comparable(case["response"])
    if not waited:
        assert len(model.requests["m"]) == case["n_chat_requests"]


def reply_of(case: dict[str, Any], hung: asyncio.Event) -> Reply:
    """How the model behaved when a case was recorded; a hanging one hangs until `hung` is set."""
    mode = case["stub"].get("mode", "")

    async def hang(request: dict[str, Any], n: int) -> web.Response:
        await hung.wait()
        return streamed("0")

    if mode == "hang":
        return hang
    if mode:
        return lambda request, n: web.json_response({}, status=int(mode.removeprefix("http")))
    result = case["response"].get("result", {})
    extra = result.get("extra", {"conversation": [], "usage": None})
    replies = [m["content"] for m in extra["conversation"] if m["role"] == "assistant"]
    return scripted(replies, extra["usage"])
