"""A policy behind any OpenAI-compatible chat endpoint (SGLang, vLLM, a hosted model).

Invariant: what comes back is untrusted: bounded in size, checked in type, quoted only in part; the
API key appears in no message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import aiohttp

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask, Message, Observation
from miner.environments.playing import Conversation
from miner.evaluation.policies import PolicyError
from miner.http_replies import (
    API_KEY_VARIABLE,
    CHAT_REPLY_LIMIT,
    Connections,
    chat_base_url,
    describe,
    excerpt,
    read_bounded,
)

_PATIENCE = aiohttp.ClientTimeout(total=180.0)  # for one reply

GO_ON = {"add_generation_prompt": False, "continue_final_message": True}
"""Asks vLLM and SGLang to go on with the assistant's message; endpoints that cannot do so refuse
what they do not know."""
_TRIES = 3
_RETRY_S = 0.5
"""Pause before the first retry; doubled before the next."""


class LlmUrlPolicy:
    """Asks `POST {url}/chat/completions` with the whole chat each turn.

    Connection failures and 5xx answers are tried again, as the grader's client does; a 4xx answer
    is final. OPENAI_API_KEY is sent if it is set.

    Args:
        url: base URL, with or without /v1.
        model: model name to ask for; None lets `connect` take the first one listed.
        temperature: sampling temperature.

    Raises: `ConfigurationError` for a URL that is none.
    """

    def __init__(self, url: str, model: str | None = None, *, temperature: float = 0.0) -> None:
        self._url = chat_base_url(url)
        self._model = model
        self.temperature = temperature
        key = os.environ.get(API_KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._connections = Connections()

    @property
    def name(self) -> str:
        """The model's name, or the URL while it is not known."""
        return self._model or self._url

    def conversation(self, task: EpisodeTask) -> Conversation:
        """A conversation that sends the task's seed along."""
        return _LlmUrlConversation(self, task.seed)

    async def close(self) -> None:
        """Close the connections (idempotent)."""
        await self._connections.close()

    async def connect(self) -> None:
        """Make sure that the endpoint answers, and choose its first model if none was named.

        Raises: `PolicyError` when it does not answer, or lists no model and none was named.
        """
        try:
            answer = await self._request("GET", "/models", None)
            listed = [entry["id"] for entry in answer["data"]]
        except _Unreachable:
            raise
        except (PolicyError, KeyError, TypeError):
            listed = []
        if self._model is None:
            if not listed or not isinstance(listed[0], str):
                raise PolicyError(f"{self._url}/models lists no model: name one (--llm-model)")
            self._model = listed[0]

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """The endpoint's answer to a chat, or the rest of the assistant's message that is its last.

        Raises: `PolicyError`, also of an endpoint that cannot go on; call `connect` first.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "temperature": self.temperature,
            "seed": seed,
        }
        if messages[-1]["role"] == "assistant":
            body |= GO_ON
        answer = await self._request("POST", "/chat/completions", body)
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            content = 0
        if content is None:
            return ""
        if not isinstance(content, str):
            raise PolicyError(
                f"{self._url}/chat/completions answered without choices[0].message.content: "
                f"{json.dumps(answer)[:200]}"
            )
        return content

    async def _request(self, method: str, path: str, body: object) -> Any:
        tries = 1
        while True:
            try:
                return await self._request_once(method, path, body)
            except _Transient as error:
                if tries == _TRIES:
                    raise _Unreachable(f"{error} ({_TRIES} tries): is the server up?") from error
            await asyncio.sleep(_RETRY_S * 2 ** (tries - 1))
            tries += 1

    async def _request_once(self, method: str, path: str, body: object) -> Any:
        url = self._url + path
        try:
            async with self._connections.here().request(
                method, url, json=body, headers=self._headers, timeout=_PATIENCE
            ) as response:
                status = response.status
                raw = await read_bounded(response, CHAT_REPLY_LIMIT)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Transient(f"{url} did not answer: {describe(error)}") from error
        if raw is None:
            raise PolicyError(f"{url} answered with more than {CHAT_REPLY_LIMIT:,} bytes")
        said = excerpt(raw[:2000].decode(errors="replace"))
        if status >= 500:
            raise _Transient(f"{url} answered HTTP {status}: {said}")
        if status != 200:
            raise PolicyError(f"{url} answered HTTP {status}, expected 200: {said}")
        try:
            return json.loads(raw)
        except ValueError:
            raise PolicyError(f"{url} answered no JSON: {said}") from None


class _Unreachable(PolicyError):
    """Every try failed transiently."""


class _Transient(Exception):
    """A failure that the next try may not meet."""


class _LlmUrlConversation:
    def __init__(self, policy: LlmUrlPolicy, seed: int) -> None:
        self._policy = policy
        self._seed = seed

    async def reply(self, chat: Observation) -> str:
        if chat.tools:
            raise ConfigurationError(
                f"{self._policy.name} is an endpoint, which reads its own tool calls: let it play "
                "with python -m miner duel"
            )
        return ended_at(await self._policy.complete(chat.messages, self._seed), chat.stop)

    async def close(self) -> None:
        pass


def ended_at(text: str, stop: Sequence[str]) -> str:
    """`text` up to the end of the first of `stop` in it.

    Endpoints leave the text out at which they stop, and few say which one it was; so they are not
    told, and the rest is thrown away.
    """
    ends = [found + len(each) for each in stop if (found := text.find(each)) >= 0]
    return text[: min(ends)] if ends else text
