"""Requests of /evaluate to the model under test: a streamed chat, until the episode's time is
up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from miner.chat_client import ChatClient, ChatError
from miner.environments import Message
from miner.http_replies import Connections, excerpt

BACKOFF_S = 1.0
"""Pause before the first repetition of a failed request; then it doubles."""
_USAGE_FIELDS = ("completion_tokens", "prompt_tokens", "total_tokens")


class ChatRefusedError(Exception):
    """The model's endpoint refused, or answered with something else than a chat completion."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """One model at one endpoint, with the sampling settings of an episode.

    Args:
        connections: to use.
        base_url: the part before `/chat/completions`.
    """

    connections: Connections
    base_url: str
    api_key: str | None
    model: Any
    seed: Any
    temperature: Any

    async def complete(self, messages: Sequence[Message]) -> tuple[str, dict[str, Any] | None]:
        """The reply to a conversation, however long it takes, and the reported usage, if any.

        Raises: `ChatRefusedError`.
        """
        if not self.api_key:
            raise ChatRefusedError("OpenAIError: no api_key was given, and the chat API needs one")
        if not str(self.api_key).isprintable():
            raise ChatRefusedError("ValueError: api_key holds characters that no header may hold")
        body = {
            "model": self.model,
            "stream": True,
            "messages": messages,
            "seed": self.seed,
            "stream_options": {"include_usage": True},
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        client = ChatClient(
            self.base_url, api_key=self.api_key, tries=None, pause_s=BACKOFF_S,
            patience_s=None, connections=self.connections,
        )  # fmt: skip
        try:
            completion = await client.complete(body)
            return completion.text, _usage(completion.usage)
        except ChatError as error:
            refused = f"API error {error.status}: the chat endpoint answered {excerpt(error.body)}"
            raise ChatRefusedError(f"ValueError: {refused if error.status else error}") from error


def _usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Token counts as the real server repeats them, with the two details it never has."""
    if usage is None:
        return None
    counts = {name: usage.get(name, 0) for name in _USAGE_FIELDS}
    return counts | {"completion_tokens_details": None, "prompt_tokens_details": None}
