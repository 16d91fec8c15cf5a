"""A graded server of a few lines with words of its own, which lies on demand.

It stands in where the mock server is too honest: its prompts differ from the miner's own words,
and `Lies` makes it break the promises that the graded channel relies on.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web

from miner.environments import Message
from miner.environments.games import GameSession, GradedDialogue, PromptFormat

WORDING = replace(
    PromptFormat.own("goofspiel"),
    system_text="Ein Kartenspiel.\n\nRegeln: 1 schlägt 0 -> roll.\n",
    turn_parts=("Runde.\n", "\n\nDu bist Spieler ", ".\nLegal Actions:\n", "\n\nWahl:"),
    retry_parts=("Versuch 1 war nichts (", "/3)?"),
)


@dataclass
class Lies:
    """Fault of the server."""

    rewrite_history: bool = False
    rewrite_reply: bool = False
    drop_history: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    play_lowest: bool = False
    no_chat: bool = False
    strip: str = ""
    """Characters around a reply that its parser does not mind and does not record."""


@dataclass
class TinyGrader:
    """One server."""

    lies: Lies
    url: str = ""

    async def evaluate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        session = GameSession(asked["task_id"], asked["seed"], opponent=asked["opponent"])
        dialogue = GradedDialogue(WORDING)
        error, made = None, []
        async with aiohttp.ClientSession() as http:
            while not session.done and not self.lies.no_chat:
                dialogue.ask(session.turn())
                while True:
                    reply = await self._chat(http, asked["base_url"], dialogue.conversation)
                    if reply is None:
                        error = "the model did not answer"
                        break
                    verdict = dialogue.reply(reply.strip(self.lies.strip or None))
                    if verdict.action is not None or verdict.failed:
                        break
                if error or verdict.action is None:
                    break
                action = session.legal_actions()[0] if self.lies.play_lowest else verdict.action
                made.append(action)
                session.play(action)
        score = session.score() if session.done else 0.0
        result = {
            "task_name": "tiny",
            "score": score,
            "success": score > 0.5,
            "extra": {
                "final_return": 2 * score - 1 if session.done else None,
                "game_name": session.game_name,
                "task_id": asked["task_id"],
                "seed": asked["seed"],
                "action_history": [
                    {"player_id": session.agent_seat, "action": a, "is_llm": True} for a in made
                ],
            },
            **({"error": error} if error else {}),
            **self.lies.result,
        }
        return web.json_response({"status": "success", "result": result, "error": None})

    async def _chat(
        self, http: aiohttp.ClientSession, base_url: str, conversation: list[Message]
    ) -> str | None:
        messages = [dict(message) for message in conversation]
        if len(messages) > 2:
            if self.lies.rewrite_history:
                messages[1]["content"] += "!"
            if self.lies.rewrite_reply:
                messages[2]["content"] = "another reply"
            if self.lies.drop_history:
                messages = messages[-1:]
        payload = {"model": "m", "messages": messages, "stream": True}
        async with http.post(f"{base_url}/chat/completions", json=payload) as response:
            body = await response.text()
            return streamed_text(body) if response.status == 200 else None


def streamed_text(body: str) -> str:
    """The text in a whole event stream, read as OpenAI's clients read it."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@asynccontextmanager
async def tiny_grader(lies: Lies | None = None) -> AsyncIterator[TinyGrader]:
    """A running `TinyGrader` on a free port of the loopback address."""
    grader = TinyGrader(lies or Lies())
    app = web.Application()
    app.router.add_post("/evaluate", grader.evaluate)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    grader.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield grader
    finally:
        await runner.cleanup()
