"""An endpoint as a player: asked, retried and blamed as the tournament's client does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from miner.config.errors import ConfigurationError
from miner.distributed.launch import free_port
from miner.duel.match import Limits, play_match
from miner.duel.outcome import Cause
from miner.duel.play import Rules
from miner.duel.players.base import PlayerError, ReplyForfeit, UnreachableError
from miner.duel.players.catalog import make_player
from miner.duel.players.endpoint import EndpointPlayer
from miner.duel.wording import own_wording
from miner.games import GAMES
from miner.http_replies import API_KEY_VARIABLE, BASE_URL_VARIABLE
from tests.duel.stand_ins import Scripted, asked, lowest_call
from tests.environments.raw_server import http, raw_server

Answer = Callable[[dict[str, Any], int], web.Response | None]
"""To a body and its number; None: never."""


@asynccontextmanager
async def _endpoint(
    answer: Answer, path: str = "/v1", **options: Any
) -> AsyncIterator[tuple[Any, list, list]]:
    """A player of an endpoint, the bodies it sent, and the seconds it waited."""
    bodies: list[dict[str, Any]] = []
    waits: list[float] = []

    async def complete(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        answered = answer(bodies[-1], len(bodies))
        if answered is None:
            await asyncio.Event().wait()
        return answered

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served"}]})

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        player = EndpointPlayer("e", str(server.make_url(path)), sleep=sleep, **options)
        yield player, bodies, waits
        await player.close()


def _completion(*calls: tuple[str, Any], content: str | None = None) -> web.Response:
    entries = [{"id": "x", "function": {"name": n, "arguments": a}} for n, a in calls]
    message = {"content": content, "tool_calls": entries or None}
    usage = {"prompt_tokens": 100, "completion_tokens": 7}
    return web.json_response({"choices": [{"message": message}], "usage": usage})


async def test_a_request_is_the_tournaments_and_the_reply_is_read() -> None:
    """Below /v1 where the URL names a host only."""
    move = ("game_action", '{"action_id": 1}')
    said = _completion(move, content="<think>x</think> ok ")
    async with _endpoint(lambda body, n: said, path="") as (player, bodies, waits):
        reply = await player.reply(asked(seed=5))
    assert [(call.name, call.arguments) for call in reply.calls] == [move]
    assert (reply.content, reply.prompt_tokens, reply.tokens) == ("ok", 100, 7)
    assert bodies[0] == asked(seed=5).body("served")
    assert waits == []


@pytest.mark.parametrize(
    ("status", "text", "expected", "requests"),
    [
        (400, "This model's maximum Context Length is 10", ReplyForfeit, 1),
        (400, "no such thing", PlayerError, 1),
        (404, "no such model", PlayerError, 1),
        (500, "boom", PlayerError, 2),
        (200, "not json", PlayerError, 1),
        (200, "[]", PlayerError, 1),
        (200, "x" * 5_000_000, PlayerError, 1),
        (200, "[" * 100_000 + "]" * 100_000, PlayerError, 1),
    ],
)
async def test_failures_are_blamed_on_whom_the_tournament_blames(
    status: int, text: str, expected: type[Exception], requests: int
) -> None:
    def answer(body: dict[str, Any], number: int) -> web.Response:
        return web.Response(status=status, text=text)

    async with _endpoint(answer) as (player, bodies, waits):
        with pytest.raises(expected) as caught:
            await player.reply(asked(seed=5))
    assert (len(bodies), waits) == (requests, [1.0] * (requests - 1))
    assert "x" * 500 not in str(caught.value)


@pytest.mark.parametrize("count", [10**400, -1, 1.5, True, "7", None])
async def test_a_count_of_tokens_that_is_none_is_left_out(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 7}
    said = {"choices": [{"message": {"content": "ok"}}], "usage": usage}
    async with _endpoint(lambda body, n: web.json_response(said)) as (player, _, _):
        reply = await player.reply(asked(seed=5))
    assert (reply.prompt_tokens, reply.tokens) == (0, 7)


async def test_models_that_are_nested_too_deep_are_no_list() -> None:
    async with raw_server(lambda path, body: http(b"[" * 100_000)) as server:
        player = EndpointPlayer("e", server.url)
        with pytest.raises(PlayerError, match="lists no model"):
            await player.reply(asked(seed=5))
        await player.close()


async def test_thoughts_that_never_end_are_left_out_at_once() -> None:
    """Looked for from each beginning, these would take hours."""
    said = _completion(content="a<think>b</think>c" + "<think>" * 200_000)
    async with _endpoint(lambda body, n: said) as (player, _, _):
        assert (await player.reply(asked(seed=5))).content == "ac"


def test_credentials_in_a_url_are_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "a-key")
    with pytest.raises(ConfigurationError, match="user name or password") as caught:
        make_player("http://me:hunter2@host:1/v1", list(GAMES))
    assert "hunter2" not in str(caught.value) + caplog.text


async def test_the_endpoint_of_ones_own_in_a_league_gets_the_key_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "a-key")
    keys = []

    async def complete(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization"))
        return _completion(("game_action", '{"action_id": 1}'))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with TestServer(app) as server:
        there = str(server.make_url("/v1"))
        for own in ("http://other:1/v1", there.replace("http", "https"), "", there):
            monkeypatch.setenv(BASE_URL_VARIABLE, own)
            player = make_player(f"{there}#m", list(GAMES))
            await player.reply(asked(seed=5))
            await player.close()
    assert keys == [None, None, None, "Bearer a-key"]
    assert caplog.text.count("OPENAI_API_KEY is not sent to http://127.0.0.1") == 3


async def test_one_failure_is_retried() -> None:
    async with _endpoint(
        lambda body, n: web.Response(status=503) if n == 1 else _completion(("game_action", "{}"))
    ) as (player, bodies, waits):
        assert len((await player.reply(asked(seed=5))).calls) == 1
    assert (len(bodies), waits) == (2, [1.0])


async def test_a_connection_that_is_refused_twice_is_no_players_fault() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    url = f"http://127.0.0.1:{free_port()}/v1"
    player = EndpointPlayer("e", url, "m", sleep=sleep)
    with pytest.raises(UnreachableError, match=url):
        await player.reply(asked(seed=5))
    await player.close()
    assert waits == [1.0]


async def test_a_server_that_hangs_twice_loses_the_game() -> None:
    async with _endpoint(lambda body, n: None, timeout_s=0.5) as (player, bodies, waits):
        with pytest.raises(ReplyForfeit) as caught:
            await player.reply(asked(seed=5))
    assert caught.value.cause == Cause.HTTP_SLOW
    assert (len(bodies), waits) == (2, [1.0])


ODD = [
    {"choices": []},
    {"choices": None},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {"tool_calls": "game_action"}}]},
    {"choices": [{"message": {"tool_calls": [None, 3, {"function": {"name": 5}}]}}]},
    {"choices": [{"message": {"tool_calls": [{"function": {"name": "game_action"}}]}}]},
    {"choices": [{"message": {"content": "y" * 100_000}}]},
    {"choices": [{"message": {"content": 1.5}}], "usage": {"prompt_tokens": -3}},
]


@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
async def test_odd_answers_forfeit_and_break_nothing(answer: dict) -> None:
    async with _endpoint(lambda body, n: web.json_response(answer)) as (player, _, _):
        other = Scripted("b", lowest_call)
        result = await play_match(
            GAMES["leduc_poker"], player, other, Rules(3, own_wording()), Limits(pairs=1)
        )
    assert result.failure is None
    assert [record.forfeiter for record in result.games] == [0, 0]
