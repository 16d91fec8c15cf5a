"""The client against a server that answers with chosen bytes: every failure has its type."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from miner.environments import EnvironmentFault, EpisodeTask, InfrastructureError, ProtocolError
from miner.environments.affinetes import (
    EVALUATE_REPLY_LIMIT,
    STEP_REPLY_LIMIT,
    AffinetesClient,
)
from tests.environments.raw_server import CLOSE, RawServer, http, raw_server, step_result

NESTED = b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TASK = EpisodeTask("goofspiel", task_id=0, seed=0)
EVALUATED = {
    "task_name": "openspiel:goofspiel",
    "score": 1.0,
    "success": True,
    "extra": {"final_return": 1.0, "task_id": 0, "seed": 0},
}


@asynccontextmanager
async def client_of(reply: bytes) -> AsyncIterator[tuple[AffinetesClient, RawServer]]:
    """A client of a server that answers everything with `reply`."""
    async with raw_server(lambda path, body: reply) as server:
        client = AffinetesClient(server.url + "/")
        yield client, server
        await client.close()


async def failure_of(reply: bytes | None, **limits: float) -> EnvironmentFault:
    """What a step answered by `reply` raises."""
    async with raw_server(lambda path, body: reply) as server:
        client = AffinetesClient(server.url, **limits)
        with pytest.raises(EnvironmentFault) as caught:
            await client.step("e1", 3)
        await client.close()
    assert caught.value.server == server.url
    assert server.url in str(caught.value)
    return caught.value


async def test_requests_name_everything_and_send_actions_as_text() -> None:
    async with client_of(http(step_result())) as (client, server):
        await client.reset(TASK)
        await client.step("e1", 3)
    assert server.requests == [
        ("/reset", {"task_id": 0, "seed": 0, "opponent": "random"}),
        ("/step", {"action": "3", "episode_id": "e1"}),
    ]


async def test_connections_are_kept_alive() -> None:
    async with client_of(http(step_result())) as (client, server):
        for _ in range(5):
            await client.step("e1", 3)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        pytest.param(http({"detail": "boom"}, 500), InfrastructureError, id="500"),
        pytest.param(http({"detail": "boom"}, 503), InfrastructureError, id="503"),
        pytest.param(http({"detail": "slow down"}, 429), InfrastructureError, id="429"),
        pytest.param(http({"detail": "Not Found"}, 404), ProtocolError, id="404"),
        pytest.param(http(b"", 307), ProtocolError, id="redirect"),
        pytest.param(CLOSE, InfrastructureError, id="closed connection"),
        pytest.param(http(step_result())[:-40], InfrastructureError, id="truncated body"),
        pytest.param(http(b'{"status": "succ'), InfrastructureError, id="truncated JSON"),
        pytest.param(http(b"\xff\xfe<html>"), InfrastructureError, id="garbage"),
        pytest.param(http(b'{"status": "success", "result": "\xff"}'), ProtocolError, id="utf-8"),
        pytest.param(http([]), ProtocolError, id="list"),
        pytest.param(http({"status": "failed", "error": "no"}), InfrastructureError, id="failed"),
        pytest.param(http({"status": "success"}), ProtocolError, id="no result"),
        pytest.param(http(NESTED), InfrastructureError, id="nested too deep"),
        pytest.param(http(step_result(reward="1.0")), ProtocolError, id="text reward"),
        pytest.param(http(step_result(reward=None)), ProtocolError, id="no reward"),
        pytest.param(http(step_result(done=1)), ProtocolError, id="number as flag"),
        pytest.param(http(step_result(observation=["x"])), ProtocolError, id="list observation"),
        pytest.param(http(step_result(episode_id="e2")), ProtocolError, id="other episode"),
        pytest.param(http(step_result(truncated=True)), InfrastructureError, id="broken off"),
    ],
)
async def test_each_failure_has_its_type(reply: bytes, kind: type[EnvironmentFault]) -> None:
    assert type(await failure_of(reply)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("episode_not_found", InfrastructureError),
        ("episode_done", InfrastructureError),
        ("no_episode_id", InfrastructureError),
        ("not_your_turn", InfrastructureError),
        ("invalid_action", ProtocolError),
        ("something_new", ProtocolError),
    ],
)
async def test_in_band_errors_have_types(error: str, kind: type[EnvironmentFault]) -> None:
    info = {"error": {"type": error, "message": "m", "retryable": True}}
    fault = await failure_of(http(step_result(reward=-0.01, info=info)))
    assert type(fault) is kind
    assert error in str(fault)


async def test_hanging_and_unreachable_servers_are_abandoned() -> None:
    assert type(await failure_of(None, reply_timeout_s=0.2)) is InfrastructureError
    client = AffinetesClient("http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="running and reachable"):
        await client.reset(TASK)
    await client.close()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_huge_body_is_not_read(announced: bool) -> None:
    body = b" " * (4 * STEP_REPLY_LIMIT)
    head = b"HTTP/1.1 200 X\r\n" + (b"content-length: %d\r\n" % len(body) if announced else b"")
    fault = await failure_of(head + b"\r\n" + body)
    assert type(fault) is InfrastructureError
    assert f"{STEP_REPLY_LIMIT:,}" in str(fault)


async def test_a_reply_of_just_the_limit_is_read() -> None:
    reply = http(step_result())
    padding = STEP_REPLY_LIMIT - (len(reply) - reply.index(b"\r\n\r\n") - 4)
    padded = http(reply.partition(b"\r\n\r\n")[2] + b" " * padding)
    async with client_of(padded) as (client, _):
        assert (await client.step("e1", 0)).episode_id == "e1"


@pytest.mark.parametrize(
    "started",
    [{"seed": 1}, {"task_id": 5}, {"opponent_type": "mcts"}, {"task_id": None}],
)
async def test_another_game_than_asked_is_refused(started: dict[str, object]) -> None:
    async with client_of(http(step_result(info=started))) as (client, _):
        with pytest.raises(ProtocolError, match="was asked for task 0, seed 0, opponent 'random'"):
            await client.reset(TASK)


async def test_evaluate_sends_all_fields_and_reads_the_result() -> None:
    reply = http({"status": "success", "result": EVALUATED, "error": None})
    async with client_of(reply) as (client, server):
        result = await client.evaluate(
            TASK, model="policy", base_url="http://x/v1", api_key="k", timeout_s=60
        )
    assert (result.score, result.extra.final_return, result.error) == (1.0, 1.0, None)
    assert server.requests[0][1] == {
        "task_id": 0,
        "seed": 0,
        "opponent": "random",
        "model": "policy",
        "base_url": "http://x/v1",
        "api_key": "k",
        "timeout": 60,
        "temperature": 0.0,
    }


@pytest.mark.parametrize(
    "changes",
    [{"score": 1.5}, {"score": -0.01}, {"score": "1"}, {"score": None}, {"extra": None}],
)
async def test_no_false_score_is_read(changes: dict[str, object]) -> None:
    reply = http({"status": "success", "result": {**EVALUATED, **changes}, "error": None})
    async with client_of(reply) as (client, _):
        with pytest.raises(ProtocolError):
            await client.evaluate(TASK, model="m", base_url="b", api_key="k", timeout_s=9)


async def test_evaluate_takes_larger_replies_than_step() -> None:
    reply = http({"status": "success", "result": EVALUATED, "error": None, "pad": "x" * (2 << 20)})
    assert STEP_REPLY_LIMIT < len(reply) < EVALUATE_REPLY_LIMIT
    async with client_of(reply) as (client, _):
        await client.evaluate(TASK, model="m", base_url="b", api_key="k", timeout_s=9)


def test_one_client_serves_several_event_loops() -> None:
    clients: list[AffinetesClient] = []

    async def step(port: int = 0) -> int:
        async with raw_server(lambda path, body: http(step_result()), port) as server:
            if not clients:
                clients.append(AffinetesClient(server.url))
            await clients[0].step("e1", 0)
            return int(server.url.rpartition(":")[2])

    port = asyncio.run(step())
    assert asyncio.run(step(port)) == port


async def test_server_text_is_quoted_in_one_bounded_line() -> None:
    detail = "first\x1b[31m line " + "x" * 5000 + "\nTraceback: secret"
    message = str(await failure_of(http(detail.encode(), 500)))
    assert "secret" not in message
    assert "\x1b" not in message
    assert len(message) < 400


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_host_that_no_name_can_be_is_a_server_that_is_away(host: str) -> None:
    client = AffinetesClient(f"http://{host}:8000")
    assert "label" in await client.health_error()
    with pytest.raises(InfrastructureError, match="label"):
        await client.api_info()
    await client.close()
