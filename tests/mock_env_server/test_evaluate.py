"""/evaluate beyond the recordings: transport, time, failures that pass, many at once."""

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest
from aiohttp import web

from miner.http_replies import CHAT_REPLY_LIMIT
from mock_env_server import chat_client
from mock_env_server.quirks import DEADLOCK_AT, Quirk
from mock_env_server.settings import ServerSettings
from tests.mock_env_server.chat_stub import ChatStub, lowest_legal_id, streamed, whole
from tests.mock_env_server.http import evaluate, new_episode, result
from tests.served import serve_in_thread

TURNS = 7
"""Decisions of an 8-card game."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "BACKOFF_S", 0.01)


def answering(request: dict[str, Any], n: int) -> web.Response:
    return streamed(lowest_legal_id(request))


def event_stream(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="text/event-stream")


async def test_a_reply_that_is_not_streamed_counts_too(server: str, model: ChatStub) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    url = model.url("m", lambda request, n: whole(lowest_legal_id(request), usage))
    graded = await evaluate(server, url)
    assert graded["extra"]["final_return"] is not None
    assert graded["extra"]["usage"].items() >= usage.items()
    assert len(model.requests["m"]) == TURNS


async def test_a_stream_in_odd_pieces(server: str, model: ChatStub) -> None:
    async def dribble(request: dict[str, Any], n: int) -> web.StreamResponse:
        data = streamed(lowest_legal_id(request)).body
        assert isinstance(data, bytes)
        data = b": a comment\r\n\r\n" + data.replace(b"\n", b"\r\n")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(model.latest)
        for start in range(0, len(data), 7):
            await response.write(data[start : start + 7])
        await response.write_eof()
        return response

    graded = await evaluate(server, model.url("m", dribble))
    assert graded["extra"]["final_return"] is not None


async def test_a_failure_that_passes_is_survived(server: str, model: ChatStub) -> None:
    def moody(request: dict[str, Any], n: int) -> web.Response:
        return web.Response(status=502) if n % 3 else answering(request, n)

    graded = await evaluate(server, model.url("m", moody))
    assert "error" not in graded
    assert graded["extra"]["final_return"] is not None
    asked = Counter(len(request["messages"]) for request in model.requests["m"])
    assert asked[2] == 1
    assert all(count == 3 for turns, count in asked.items() if turns > 2)


async def test_the_pause_between_attempts_doubles(
    server: str, model: ChatStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_client, "BACKOFF_S", 0.1)
    url = model.url("m", lambda request, n: web.Response(status=500))
    await evaluate(server, url, timeout=1.5)  # attempts at 0, 0.1, 0.3, 0.7 and 1.5 > 1.35 s
    assert 1 < len(model.requests["m"]) <= 4


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_a_refusal_ends_the_episode_at_once(
    server: str, model: ChatStub, status: int
) -> None:
    def refuse_third(request: dict[str, Any], n: int) -> web.Response:
        return web.Response(status=status) if n == 2 else answering(request, n)

    graded = await evaluate(server, model.url("m", refuse_third))
    assert graded["error"].startswith("[API_ERROR]")
    assert str(status) in graded["error"]
    assert len(model.requests["m"]) == 3
    assert [entry["is_llm"] for entry in graded["extra"]["action_history"]].count(True) == 2


@pytest.mark.parametrize(
    "reply",
    [
        web.Response(body=b"<html>", content_type="text/html"),
        web.json_response([1]),
        web.json_response({"choices": []}),
        event_stream(b"data: {no json\n\n"),
        event_stream(b'data: {"error": {"message": "out of memory"}}\n\n'),
        web.Response(body=b" " * (CHAT_REPLY_LIMIT + 1), content_type="application/json"),
        event_stream(b": x\n" * (CHAT_REPLY_LIMIT // 4 + 1)),
    ],
    ids=["html", "list", "no choice", "broken event", "error event", "huge", "huge stream"],
)
async def test_what_is_not_a_chat_completion_is_reported(
    server: str, model: ChatStub, reply: web.Response
) -> None:
    graded = await evaluate(server, model.url("m", lambda request, n: reply), timeout=20)
    assert graded["error"].startswith("[API_ERROR]")
    assert len(model.requests["m"]) <= 1


async def test_the_key_is_never_repeated(server: str, model: ChatStub) -> None:
    url = model.url("m", lambda request, n: web.Response(status=401))
    graded = await evaluate(server, url, api_key="secret-7")
    assert model.headers["m"]["authorization"] == "Bearer secret-7"
    assert "secret-7" not in orjson.dumps(graded).decode()


async def test_a_key_that_cannot_be_sent_is_an_error_of_the_episode(
    server: str, model: ChatStub
) -> None:
    graded = await evaluate(server, model.url("m", answering), api_key="a\nb")
    assert graded["error"].startswith("[API_ERROR]")
    assert not model.requests["m"]


async def test_settings_reach_the_model(server: str, model: ChatStub) -> None:
    await evaluate(server, model.url("warm", answering), seed=5, temperature=0.7, model="name")
    await evaluate(server, model.url("plain", answering))
    request = model.requests["warm"][0]
    assert (request["seed"], request["temperature"], request["model"]) == (5, 0.7, "name")
    assert (request["stream"], request["stream_options"]) == (True, {"include_usage": True})
    assert "temperature" not in model.requests["plain"][0]
    assert "max_tokens" not in request


async def test_what_is_missing_is_drawn(server: str, model: ChatStub) -> None:
    url = model.url("m", lambda request, n: web.Response(status=400))
    graded = await result(
        server, "/evaluate", base_url=url, api_key="k", model="m", opponent="random"
    )
    assert isinstance(graded["extra"]["seed"], int)
    assert graded["extra"]["game_name"] != "unknown"


async def test_two_hundred_at_once_finish(server: str, model: ChatStub) -> None:
    players = 200
    everybody_waits = asyncio.Event()

    async def together(request: dict[str, Any], n: int) -> web.Response:
        """Nobody gets a first reply before everybody has asked: all 200 are in progress."""
        if len(model.requests) == players:
            everybody_waits.set()
        await everybody_waits.wait()
        return answering(request, n)

    urls = [model.url(f"m{i}", together) for i in range(players)]
    graded = await asyncio.gather(
        *(evaluate(server, url, task_id=i, seed=i, timeout=120) for i, url in enumerate(urls))
    )
    assert [one["extra"]["seed"] for one in graded] == list(range(players))
    assert all("error" not in one for one in graded)
    assert all(one["extra"]["final_return"] is not None for one in graded)


async def test_deadlock_locks_up_at_its_number_and_stays_locked(model: ChatStub) -> None:
    all_asked, let_go = asyncio.Event(), asyncio.Event()

    async def held(request: dict[str, Any], n: int) -> web.Response:
        if sum(name.startswith("many") for name in model.requests) == DEADLOCK_AT - 1:
            all_asked.set()
        await let_go.wait()
        return answering(request, n)

    with serve_in_thread(ServerSettings(quirks=frozenset({Quirk.DEADLOCK}))) as server:
        few = await asyncio.gather(
            *(evaluate(server, model.url(f"few{i}", answering)) for i in range(20))
        )
        assert all(one["extra"]["final_return"] is not None for one in few)
        urls = [model.url(f"many{i}", held) for i in range(DEADLOCK_AT - 1)]
        calls = [asyncio.create_task(evaluate(server, url, timeout=60)) for url in urls]
        await all_asked.wait()
        last = model.url("last", answering)
        calls += [asyncio.create_task(evaluate(server, last, timeout=0.2)) for _ in range(3)]
        for _ in range(10):  # by then the server has read the calls before
            await new_episode(server)
        let_go.set()
        done, _ = await asyncio.wait(calls, timeout=1.0)  # five times what the last ones may take
        assert not done
        assert "last" not in model.requests
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("straggles", [False, True])
async def test_stragglers_go_on_after_the_answer(model: ChatStub, straggles: bool) -> None:
    answered, asked_again = asyncio.Event(), asyncio.Event()

    async def slow(request: dict[str, Any], n: int) -> web.Response:
        if n:
            asked_again.set()
        await answered.wait()
        return answering(request, n)

    quirks = frozenset({Quirk.STRAGGLERS} if straggles else ())
    with serve_in_thread(ServerSettings(quirks=quirks)) as server:
        graded = await evaluate(server, model.url("m", slow), timeout=0.3)
        assert "limit: 0.3s" in graded["error"]
        answered.set()
        if straggles:
            await asyncio.wait_for(asked_again.wait(), 20)
        else:
            # Another whole episode passes through the same loop; the first had its chance.
            await evaluate(server, model.url("other", answering))
            assert len(model.requests["m"]) <= 1
