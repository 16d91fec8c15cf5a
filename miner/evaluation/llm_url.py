"""A policy behind any OpenAI-compatible chat endpoint (SGLang, vLLM, a hosted model).

Invariant: what comes back is untrusted: bounded in size, checked in type, quoted only in part; the
API key appears in no message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask, Message, Observation
from miner.environments.playing import Conversation
from miner.evaluation.policies import PolicyError
from miner.http_replies import API_KEY_VARIABLE, CHAT_REPLY_LIMIT, JsonServer, chat_base_url
from miner.inference.vllm.wire import ModelsReply

GO_ON = {"add_generation_prompt": False, "continue_final_message": True}
"""Asks vLLM and SGLang to go on with the assistant's message; endpoints that cannot do so refuse
what they do not know."""
_PATIENCE = aiohttp.ClientTimeout(total=180.0)  # for one reply
_TRIES = 3
_RETRY_S = 0.5
"""Pause before the first retry; doubled before the next."""

_T = TypeVar("_T")


class _Message(msgspec.Struct):
    content: str | None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class LlmUrlPolicy(JsonServer):
    """Asks `POST {url}/chat/completions` with the whole chat each turn.

    Connection failures and 5xx answers are tried again, as the grader's client does; a 4xx answer
    is final. OPENAI_API_KEY is sent if it is set.

    Args:
        url: base URL, with or without /v1.
        model: model name to ask for; None lets `connect` take the first one listed.
        temperature: sampling temperature.

    Raises: `ConfigurationError` for a URL that is none.
    """

    what = "the model endpoint"
    redirects = True

    def __init__(self, url: str, model: str | None = None, *, temperature: float = 0.0) -> None:
        super().__init__(chat_base_url(url))
        self._model = model
        self.temperature = temperature
        key = os.environ.get(API_KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    @property
    def name(self) -> str:
        """The model's name, or the URL while it is not known."""
        return self._model or self.url

    def conversation(self, task: EpisodeTask) -> Conversation:
        """A conversation that sends the task's seed along."""
        return _LlmUrlConversation(self, task.seed)

    async def connect(self) -> None:
        """Make sure that the endpoint answers, and choose its first model if none was named.

        Raises: `PolicyError` when it does not answer, or lists no model and none was named.
        """
        try:
            listed = (await self._ask(ModelsReply, "models")).data
        except _Unreachable:
            raise
        except PolicyError:
            listed = []
        if self._model is None:
            if not listed:
                raise PolicyError(
                    f"{self.url}/models lists no model: name one after the URL, as URL#MODEL"
                )
            self._model = listed[0].id

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
        answer = await self._ask(_Completion, "chat/completions", body)
        return answer.choices[0].message.content or ""

    async def _ask(self, kind: type[_T], path: str, body: object = None) -> _T:
        """The answer to a request and its retries; `body` None: GET."""
        data = None if body is None else json.dumps(body).encode()
        tries = 1
        while True:
            try:
                raw = await self._request(
                    "POST" if data else "GET", path, data,
                    limit=CHAT_REPLY_LIMIT, patience=_PATIENCE, headers=self._headers,
                )  # fmt: skip
                break
            except _Unreachable as error:
                if tries == _TRIES:
                    raise _Unreachable(f"{error} ({_TRIES} tries)") from error
            await asyncio.sleep(_RETRY_S * 2 ** (tries - 1))
            tries += 1
        try:
            return self._decode(kind, raw, path)
        except _Unreachable as error:  # what is no JSON is a page, and stays one
            raise PolicyError(str(error)) from error

    def _away(self, said: str) -> Exception:
        return _Unreachable(said)

    def _broken(self, said: str) -> Exception:
        return PolicyError(said)

    def _refusal(self, path: str, status: int, detail: str, wanted: int = 200) -> Exception:
        if status < 500:  # 408 and 429 too: nobody asks the tournament's endpoint again
            return self._broken(f"{self.url}/{path} answered HTTP {status}: {detail}")
        return super()._refusal(path, status, detail, wanted)


class _Unreachable(PolicyError):
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
