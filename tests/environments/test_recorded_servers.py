"""The channels against what the real server said, word for word."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from miner.environments import EpisodeTask
from miner.environments.graded import GradedSource
from miner.environments.step import StepSource
from tests.environments.playing import play_on
from tests.environments.raw_server import STOPPED, http, raw_server
from tests.recordings import load

GRADED = load("evaluate.jsonl")
STEPPED = [
    episode
    for episode in load("train_api.jsonl")
    if episode["policy"] in ("random", "lowest", "highest", "match")
    and episode["style"] == "rest"
    and episode["opponent"] == "random"
]


async def replay_graded(episode: dict[str, Any]) -> tuple[GradedSource, Any]:
    """Play a recorded episode through the graded channel, with the recorded replies."""

    async def evaluate(request: web.Request) -> web.Response:
        asked = await request.json()
        async with aiohttp.ClientSession() as session:
            for chat in episode["chats"]:
                url = f"{asked['base_url']}/chat/completions"
                async with session.post(url, json=chat["request"]) as response:
                    assert response.status == 200
                    await response.read()
        return web.json_response(episode["response"])

    app = web.Application()
    app.router.add_post("/evaluate", evaluate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    source = GradedSource([f"http://127.0.0.1:{runner.addresses[0][1]}"])
    replies = iter([chat["reply"] for chat in episode["chats"]])
    task = EpisodeTask("goofspiel", episode["task_id"], episode["seed"])
    try:
        return source, await play_on(source, task, lambda legal: next(replies))
    finally:
        await source.close()
        await runner.cleanup()


@pytest.mark.parametrize("episode", GRADED, ids=lambda e: f"{e['policy']}-{e['seed']}")
async def test_recorded_graded_episodes(episode: dict[str, Any]) -> None:
    source, played = await replay_graded(episode)
    recorded = episode["response"]["result"]
    assert played.score == recorded["score"]
    assert played.transitions[-1].valid == (recorded["extra"]["final_return"] is not None)
    assert source.stats.disagreements == 0
    assert source.stats.asked == source.stats.applied
    # Everything the server said reached the policy once, in order.
    said = [m for m in episode["chats"][-1]["request"]["messages"] if m["role"] != "assistant"]
    assert [message for shown in played.shown for message in shown] == said


@pytest.mark.parametrize("episode", STEPPED, ids=lambda e: f"{e['policy']}-{e['seed']}")
async def test_recorded_step_episodes(episode: dict[str, Any]) -> None:
    calls = [call for call in episode["calls"] if call["path"] in ("/reset", "/step")]
    ended = next(i for i, c in enumerate(calls) if c["response"]["result"]["done"])
    calls = calls[: ended + 1]
    assert len(calls) > 5
    answers = iter(calls)

    def answer(path: str, body: bytes) -> bytes:
        return STOPPED if path == "/stop" else http(next(answers)["response"])

    actions = iter([call["request"]["action"] for call in calls[1:]])
    async with raw_server(answer) as server:
        source = StepSource([server.url])
        task = EpisodeTask("goofspiel", episode["task_id"], episode["seed"])
        played = await play_on(source, task, lambda legal: next(actions))
        await source.close()
    assert all(transition.valid for transition in played.transitions)
    assert played.score == calls[-1]["response"]["result"]["reward"]
    assert source.stats.asked == len(played.transitions) - 1
    assert source.stats.applied_rate is not None
    assert source.stats.applied_rate < 1.0
