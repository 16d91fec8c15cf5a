"""Any OpenAI-compatible endpoint as a policy, in good and bad health."""

import json
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from miner.config.errors import ConfigurationError
from miner.distributed.launch import free_port
from miner.environments import EpisodeTask, Observation
from miner.evaluation import llm_url
from miner.evaluation.llm_url import LlmUrlPolicy
from miner.evaluation.policies import PolicyError

TASK = EpisodeTask("goofspiel", 0, 17)
CHAT = [{"role": "user", "content": "Your move?"}]
SECRET = "sk-do-not-tell"
KNOWN = {"choices": [{"message": {"role": "assistant", "content": "4"}}]}


class Endpoint:
    """Answers chat requests with `answers` in turn, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = [(200, KNOWN)]
        self.models: object = {"data": [{"id": "first"}, {"id": "second"}]}
        self.requests: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.url = ""

    async def chat(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    async def list_models(self, request: web.Request) -> web.Response:
        if isinstance(self.models, str):
            return web.Response(text=self.models)
        return web.json_response(self.models)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.list_models)
    async with TestServer(app) as server:
        endpoint.url = str(server.make_url("/v1"))
        yield endpoint


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_url, "_RETRY_S", 0.0)


@pytest.fixture
async def policy(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LlmUrlPolicy]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    policy = LlmUrlPolicy(endpoint.url, "named")
    yield policy
    await policy.close()


async def test_a_reply_is_asked_for_as_the_grader_asks(
    endpoint: Endpoint, policy: LlmUrlPolicy
) -> None:
    assert await policy.conversation(TASK).answer(Observation(CHAT)) == "4"
    assert endpoint.requests == [
        {"model": "named", "messages": CHAT, "temperature": 0.0, "seed": 17}
    ]
    assert endpoint.keys == [f"Bearer {SECRET}"]


@pytest.mark.parametrize(("content", "reply"), [(None, ""), ("\ud83d 5", "? 5")])
async def test_no_words_and_half_an_emoji_are_replies(
    endpoint: Endpoint, policy: LlmUrlPolicy, content: str | None, reply: str
) -> None:
    endpoint.answers = [(200, {"choices": [{"message": {"content": content}}]})]
    assert await policy.conversation(TASK).answer(Observation(CHAT)) == reply


async def test_a_server_error_is_tried_again(endpoint: Endpoint, policy: LlmUrlPolicy) -> None:
    endpoint.answers = [(500, "oops"), (503, "busy"), (200, KNOWN)]
    assert await policy.conversation(TASK).answer(Observation(CHAT)) == "4"
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("answer", "tries", "message"),
    [
        ((429, "slow down"), 1, "HTTP 429.*slow down"),
        ((500, "oops"), 3, "HTTP 500.*oops"),
        ((200, "<html>"), 1, "broken reply .*<html>"),
        ((200, {"choices": []}), 1, "another shape"),
        ((200, [1]), 1, "another shape"),
        ((200, {"choices": [{"message": {"content": 4}}]}), 1, "another shape"),
        ((200, "x" * (4 * 1024 * 1024 + 1)), 1, "more than 4,194,304 bytes"),
    ],
)
async def test_an_answer_that_is_none_is_named_and_never_shows_the_key(
    endpoint: Endpoint, policy: LlmUrlPolicy, answer: tuple[int, object], tries: int, message: str
) -> None:
    endpoint.answers = [answer]
    with pytest.raises(PolicyError, match=message) as caught:
        await policy.conversation(TASK).answer(Observation(CHAT))
    assert len(endpoint.requests) == tries
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "shorten", [str, lambda url: url.removesuffix("/v1"), lambda url: f"{url}/"]
)
async def test_the_first_listed_model_is_taken_however_the_url_ends(
    endpoint: Endpoint, shorten: Callable[[str], str]
) -> None:
    policy = LlmUrlPolicy(shorten(endpoint.url))
    try:
        await policy.connect()
        assert policy.name == "first"
        await policy.conversation(TASK).answer(Observation(CHAT))
    finally:
        await policy.close()
    assert endpoint.requests[0]["model"] == "first"


@pytest.mark.parametrize("models", [{"data": []}, {"data": [{"id": 3}]}, [], "<html>"])
async def test_no_listed_model_needs_a_name(endpoint: Endpoint, models: object) -> None:
    endpoint.models = models
    nameless = LlmUrlPolicy(endpoint.url)
    named = LlmUrlPolicy(endpoint.url, "mine")
    try:
        with pytest.raises(PolicyError, match="#MODEL"):
            await nameless.connect()
        await named.connect()
    finally:
        await nameless.close()
        await named.close()
    assert named.name == "mine"


async def test_a_dead_endpoint_is_noticed_at_once() -> None:
    policy = LlmUrlPolicy(f"http://127.0.0.1:{free_port()}/v1", "mine")
    try:
        with pytest.raises(PolicyError, match="is running and reachable from here"):
            await policy.connect()
    finally:
        await policy.close()


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://host/v1", "http://", ""])
def test_what_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a URL of a model endpoint"):
        LlmUrlPolicy(url)
