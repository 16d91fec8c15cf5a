"""The client of a `vllm serve`: what it asks, what it makes of answers, and servers that fail."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestServer

from miner.agents import VLLMClient, VLLMClientGenerationConfig
from miner.background_loop import BackgroundLoop
from miner.http_replies import CONNECT_S
from miner.inference.sampler import EngineLostError, SamplerError
from miner.inference.vllm.client import VllmServer


class Server:
    """Answers each prompt with its length and the choice's number, latest choice first."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.padding = ""
        self.card: dict[str, Any] = {}
        self.app = web.Application()
        self.app.add_routes(
            [web.get("/v1/models", self._models), web.post("/v1/completions", self._complete)]
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", **self.card}]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        ids = list(map(ord, body["prompt"])) if isinstance(body["prompt"], str) else body["prompt"]
        choices = [
            {
                "index": n,
                "token_ids": [len(ids), n],
                "prompt_token_ids": ids,
                "logprobs": {"token_logprobs": [-0.5, -1.0]},
                "finish_reason": "stop",
                "stop_reason": "</code>" if n else None,
            }
            for n in reversed(range(body["n"]))
        ]
        return web.json_response({"choices": choices, "padding": self.padding})


@pytest.fixture
def server() -> Iterator[Server]:
    there = Server()
    with BackgroundLoop() as loop:
        running = TestServer(there.app)
        loop.run(running.start_server())
        there.url = str(running.make_url("")).rstrip("/")
        yield there
        loop.run(running.close())


def test_completions_come_in_order_with_all_that_belongs_to_them(server: Server) -> None:
    client = VLLMClient(server.url)
    config = VLLMClientGenerationConfig(
        n=2, temperature=0.7, top_p=0.9, top_k=10, max_tokens=7, stop=["</code>"]
    )
    made = client.generate(prompts=["ab", [5, 6, 7]], **vars(config))
    client.close()
    assert made == [[2, 0], [2, 1], [3, 0], [3, 1]]
    assert made.prompt_ids == [[97, 98]] * 2 + [[5, 6, 7]] * 2
    assert made.logprobs == [[-0.5, -1.0]] * 4
    assert [item.finish_reason for item in made.items] == ["stop", "stop_string"] * 2
    for body in server.asked:
        assert (body["model"], body["n"], body["top_p"], body["top_k"]) == ("m", 2, 0.9, 10)
        assert (body["max_tokens"], body["stop"]) == (7, ["</code>"])
        assert body["temperature"] == 0.7
        assert "structured_outputs" not in body


def test_a_template_that_wrote_the_bos_token_gets_no_second_one(server: Server) -> None:
    client = VLLMClient(server.url, bos_token="<s>")
    client.generate(["<s>a", "a", [1, 2]])
    client.close()
    asked = {str(body["prompt"]): body.get("add_special_tokens") for body in server.asked}
    assert asked == {"<s>a": False, "a": True, "[1, 2]": None}


def test_a_regex_is_handed_on(server: Server) -> None:
    client = VLLMClient(server.url)
    client.generate(["a"], guided_decoding_regex="[0-9]+")
    client.close()
    assert server.asked[0]["structured_outputs"] == {"regex": "[0-9]+"}
    assert server.asked[0]["top_k"] == 0


def test_a_reply_may_be_as_long_as_what_was_asked_for(server: Server) -> None:
    client = VLLMClient(server.url)
    server.padding = "x" * (5 << 20)
    assert client.generate(["ab"], n=2, max_tokens=11_000) == [[2, 0], [2, 1]]
    with pytest.raises(SamplerError, match="sent more than"):
        client.generate(["ab"], n=1, max_tokens=11_000)
    client.close()


def test_completions_have_no_time_limit_but_for_the_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests wait in the server's queue for as long as the others take."""
    limits: dict[str, ClientTimeout] = {}
    request = VllmServer._request

    async def noted(self: Any, method: Any, path: str, *given: Any, **named: Any) -> bytes:
        limits[path] = named["patience"]
        return await request(self, method, path, *given, **named)

    monkeypatch.setattr(VllmServer, "_request", noted)
    client = VLLMClient(server.url)
    client.generate(["a"])
    client.close()
    assert limits["v1/completions"] == ClientTimeout(total=None, sock_connect=CONNECT_S)
    assert limits["v1/models"].total is not None


@pytest.mark.parametrize(
    ("card", "context"), [({"max_model_len": 77}, 77), ({"max_model_len": None}, sys.maxsize)]
)
def test_the_servers_context_is_known(server: Server, card: dict[str, Any], context: int) -> None:
    server.card = card
    client = VLLMClient(server.url)
    assert client.context == context
    client.generate([[1] * 70, "text"], max_tokens=16)
    asked = {len(each["prompt"]): each["max_tokens"] for each in server.asked}
    assert asked == {70: min(16, context - 70), 4: 16}  # a server refuses more than has room
    client.close()


def test_a_server_that_is_not_there_is_reported() -> None:
    with pytest.raises(EngineLostError, match="check that the inference server"):
        VLLMClient("http://127.0.0.1:9")
