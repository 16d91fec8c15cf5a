"""The chat endpoint as an OpenAI-compatible server: routes, refusals, both reply forms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from miner.distributed.launch import free_port
from miner.environments import InfrastructureError, graded_endpoint
from miner.environments.graded_endpoint import ChatEndpoint, ChatExchange, route_address
from tests.environments.tiny_grader import streamed_text

SERVER = "http://127.0.0.1:8000"
MESSAGES = [{"role": "user", "content": "Legal Actions:\n0 -> a"}]


@dataclass
class Line:
    """An endpoint with one open exchange, and a client of it."""

    endpoint: ChatEndpoint
    exchange: ChatExchange[Any]
    base_url: str
    http: aiohttp.ClientSession

    async def post(self, body: object, url: str | None = None) -> tuple[int, str, str]:
        """Status, content type and body of a completion request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"{url or self.base_url}/chat/completions", data=data) as reply:
            return reply.status, reply.content_type, await reply.text()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    endpoint = ChatEndpoint()
    exchange = endpoint.open()
    async with aiohttp.ClientSession() as http:
        yield Line(endpoint, exchange, await endpoint.base_url(exchange, SERVER), http)
    await endpoint.close()


async def test_after_a_kill_the_next_process_refuses_what_servers_still_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank has a port of its own; where another program has it, any port will do."""
    monkeypatch.setattr(graded_endpoint, "FIRST_PORT", free_port() - 1)
    monkeypatch.setenv("RANK", "1")
    killed, beside, restarted = ChatEndpoint(), ChatEndpoint(), ChatEndpoint()
    async with aiohttp.ClientSession() as http:
        asked = await killed.base_url(killed.open(), SERVER)
        assert asked.startswith(f"http://127.0.0.1:{graded_endpoint.FIRST_PORT + 1}/")
        other = await beside.base_url(beside.open(), SERVER)
        assert other.rpartition("/")[0] != asked.rpartition("/")[0]
        await killed.close()
        again = restarted.open()
        line = Line(restarted, again, await restarted.base_url(again, SERVER), http)
        assert (await line.post({"messages": MESSAGES}, asked))[0] == 404
    for endpoint in (beside, restarted):
        await endpoint.close()


@pytest.mark.parametrize(
    "text", ["7", "", "a\n\nb\r\nc", '\u2028\x85 ü💥\x00\x1e\\"', "x" * 300_000]
)
async def test_replies_arrive_as_they_are_in_both_forms(line: Line, text: str) -> None:
    for number, options in enumerate(({"stream": True}, {"stream": False}, {})):
        messages = [*MESSAGES, {"role": "user", "content": str(number)}]
        request = asyncio.create_task(line.post({"messages": messages, **options}))
        assert await line.exchange.inbox.get() == messages
        line.exchange.reply(text)
        status, kind, body = await request
        assert status == 200
        if options.get("stream"):
            assert kind == "text/event-stream"
            assert streamed_text(body) == text
        else:
            assert json.loads(body)["choices"][0]["message"]["content"] == text
            assert json.loads(body)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(("options", "count"), [({"include_usage": True}, 1), ({}, 0), (None, 0)])
async def test_usage_is_streamed_if_asked_for(line: Line, options: Any, count: int) -> None:
    body = {"messages": MESSAGES, "stream": True, "stream_options": options, "max_tokens": 5}
    request = asyncio.create_task(line.post(body))
    await line.exchange.inbox.get()
    line.exchange.reply("1")
    _, _, events = await request
    chunks = [json.loads(event[6:]) for event in events.split("\n\n")[:-2]]
    assert sum("usage" in chunk for chunk in chunks) == count
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]] == [None, "stop"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        {},
        {"messages": None},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": MESSAGES, "stream": "yes"},
    ],
)
async def test_malformed_requests_are_refused_and_reach_no_episode(
    line: Line, body: object
) -> None:
    status, kind, text = await line.post(body)
    assert (status, kind) == (400, "application/json")
    assert json.loads(text)["error"]["message"]
    assert line.exchange.inbox.empty()


async def test_long_chats_are_read_and_huge_ones_refused(line: Line) -> None:
    messages = [{"role": "assistant", "content": "x" * (6 << 20)}, *MESSAGES]
    request = asyncio.create_task(line.post({"messages": messages}))
    assert await line.exchange.inbox.get() == messages
    line.exchange.reply("1")
    assert (await request)[0] == 200
    assert (await line.post(b" " * (9 << 20)))[0] == 413


async def test_keys_distinguish_episodes(line: Line) -> None:
    unknown = line.base_url.replace(line.exchange.key, "0" * 16)
    assert (await line.post({"messages": MESSAGES}, unknown))[0] == 404
    pending = asyncio.create_task(line.post({"messages": MESSAGES}))
    await line.exchange.inbox.get()
    line.endpoint.close_exchange(line.exchange)
    line.endpoint.close_exchange(line.exchange)
    assert (await pending)[0] == 404
    assert (await line.post({"messages": MESSAGES}))[0] == 404


async def test_only_chats_of_episodes_are_served(line: Line) -> None:
    root = line.base_url.rpartition("/" + line.exchange.key)[0]
    for path in ("/", "/v1/models", "/v1/chat/completions"):
        async with line.http.get(root + path) as response:
            assert response.status == 404, path


async def test_a_repeated_request_joins_the_first_and_gets_its_reply_again(line: Line) -> None:
    first, second = (asyncio.create_task(line.post({"messages": MESSAGES})) for _ in range(2))
    await line.exchange.inbox.get()
    line.exchange.reply("4")
    third = await line.post({"messages": MESSAGES})
    contents = [
        json.loads(body)["choices"][0]["message"]["content"]
        for _, _, body in (await first, await second, third)
    ]
    assert contents == ["4", "4", "4"]
    assert line.exchange.inbox.empty()


async def test_a_dropped_connection_does_not_lose_the_turn(line: Line) -> None:
    dropped = asyncio.create_task(line.post({"messages": MESSAGES}))
    await line.exchange.inbox.get()
    dropped.cancel()
    again = asyncio.create_task(line.post({"messages": MESSAGES}))
    line.exchange.reply("4")
    assert "4" in (await again)[2]


async def test_addresses_follow_the_route_to_the_server() -> None:
    assert await route_address("http://127.0.0.1:8000") == "127.0.0.1"
    assert await route_address("http://localhost:8000") in ("127.0.0.1", "::1")
    with pytest.raises(InfrastructureError, match="no route to http://no-such-host"):
        await route_address("http://no-such-host.invalid:8000")
