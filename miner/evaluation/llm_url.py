"""A policy behind any OpenAI-compatible chat endpoint (SGLang, vLLM, a hosted model)."""

import os
from collections.abc import Sequence
from typing import Any

from miner.chat_client import ChatAwayError, ChatClient, ChatError
from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask, Message, Observation
from miner.environments.playing import TextConversation
from miner.evaluation.policies import PolicyError
from miner.http_replies import API_KEY_VARIABLE, chat_base_url

CONTINUE = {"add_generation_prompt": False, "continue_final_message": True}
"""Asks vLLM and SGLang to continue the assistant's message; other endpoints refuse it."""
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

    Raises: `ConfigurationError` for an invalid URL.
    """

    def __init__(self, url: str, model: str | None = None, *, temperature: float = 0.0) -> None:
        self._client = ChatClient(
            chat_base_url(url), api_key=os.environ.get(API_KEY_VARIABLE), pause_s=_RETRY_S
        )
        self._model = model
        self.temperature = temperature

    @property
    def name(self) -> str:
        """The model's name, or the URL while it is not known."""
        return self._model or self._client.url

    def conversation(self, task: EpisodeTask) -> TextConversation:
        """A conversation whose requests carry the task's seed."""

        async def reply(chat: Observation) -> str:
            if chat.tools:
                raise ConfigurationError(
                    f"{self.name} is an endpoint, which reads its own tool calls: let it play with "
                    "python -m miner duel"
                )
            return ended_at(await self.complete(chat.messages, task.seed), chat.stop)

        return TextConversation(reply)

    async def connect(self) -> None:
        """Make sure that the endpoint answers, and choose its first model if none was named.

        Raises: `PolicyError` when it does not answer, or lists no model and none was named.
        """
        try:
            listed = await self._client.first_model()
        except ChatError as error:
            if isinstance(error, ChatAwayError) or self._model is None:
                raise PolicyError(str(error)) from error
        else:
            self._model = self._model or listed

    async def complete(self, messages: Sequence[Message], seed: int) -> str:
        """The endpoint's answer to a chat, or the rest of the assistant's message that is its last.

        Raises: `PolicyError`, also of an endpoint that cannot continue; call `connect` first.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "temperature": self.temperature,
            "seed": seed,
        }
        if messages[-1]["role"] == "assistant":
            body |= CONTINUE
        try:
            return (await self._client.complete(body)).text
        except ChatError as error:
            raise PolicyError(str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def ended_at(text: str, stop: Sequence[str]) -> str:
    """`text` up to the end of the first of `stop` in it.

    Endpoints leave the text out at which they stop, and few report which one it was; so they are
    not asked to stop, and the rest is thrown away.
    """
    ends = [found + len(each) for each in stop if (found := text.find(each)) >= 0]
    return text[: min(ends)] if ends else text
