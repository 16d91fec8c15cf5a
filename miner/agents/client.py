"""Clients with a synchronous `generate`: of a `vllm serve`, or of an engine in this process.

Invariant: completions come in the order of the prompts, the `n` of each one after the other, with
the ids that the engine sampled; nothing is tokenised that came from a model.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase
from trl.data_utils import maybe_apply_chat_template

from miner.agents.completions import Completion, Completions
from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.inference.sampler import Sampler, SamplerError, SamplingParams
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.wire import Choice
from miner.rollout.completions import begins_with, prompt_ids, sample_all

Prompt = str | Sequence[int]


@dataclass
class VLLMClientGenerationConfig:
    """Parameters of generation, by vLLM's names.

    Attributes:
        n: completions of each prompt.
        max_tokens: of each completion; in an agent's run, of each of its replies.
        guided_decoding_regex: regular expression that a completion must match.
        stop: texts at which completions end.
    """

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int = 256
    guided_decoding_regex: str | None = None
    stop: list[str] | None = None


class Client(Protocol):
    """The client that environments generate with.

    Attributes:
        context: tokens that a prompt and its completion may have together.
    """

    context: int

    @property
    def generate(self) -> Callable[..., Completions]:
        """Complete `prompts`, texts or token ids; the other arguments are the fields of
        `VLLMClientGenerationConfig`."""


class VLLMClient:
    """Client of a `vllm serve`.

    Args:
        base_url: by default made of `host` and `server_port`.
        connection_timeout: seconds that the server may take to come up.
        bos_token: the model's; a text that begins with it, as chat templates write it, gets no
            second one.

    Raises: `EngineLostError` if it does not answer by then.
    """

    def __init__(
        self,
        base_url: str | None = None,
        host: str = "127.0.0.1",
        server_port: int = 8000,
        connection_timeout: float = 0.0,
        bos_token: str | None = None,
    ) -> None:
        self._bos_token = bos_token
        # a request's time in the server's queue grows with the number of prompts
        self._server = VllmServer(base_url or f"http://{host}:{server_port}", reply_timeout_s=None)
        self._loop = BackgroundLoop("vllm-client")
        self.context = self._loop.run(self._up(connection_timeout)) or sys.maxsize

    def generate(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        max_tokens: int = 16,
        guided_decoding_regex: str | None = None,
        stop: Sequence[str] | None = None,
    ) -> Completions:
        """Complete each prompt `n` times; all of them are in flight at once.

        Raises: `EngineLostError`, `SamplerError`.
        """
        options: dict[str, Any] = {
            "n": n,
            "repetition_penalty": repetition_penalty,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": max(top_k, 0),
            "min_p": min_p,
            "max_tokens": max_tokens,
            "stop": list(stop or ()),
            "logprobs": 0,
        }
        if guided_decoding_regex:
            options["structured_outputs"] = {"regex": guided_decoding_regex}
        answered = self._loop.run(self._all(prompts, options))
        return Completions([item for items in answered for item in items])

    def close(self) -> None:
        """Close the connections."""
        self._loop.run(self._server.close())
        self._loop.close()

    async def _all(
        self, prompts: Sequence[Prompt], options: dict[str, Any]
    ) -> list[list[Completion]]:
        return await asyncio.gather(*(self._complete(prompt, options) for prompt in prompts))

    async def _complete(self, prompt: Prompt, options: dict[str, Any]) -> list[Completion]:
        if isinstance(prompt, str):
            special = not begins_with(self._bos_token, prompt)
            options = {**options, "add_special_tokens": special}
        asked = prompt if isinstance(prompt, str) else list(prompt)
        if not isinstance(prompt, str):  # a server refuses more than there is room for
            room = max(1, self.context - len(prompt))
            options = {**options, "max_tokens": min(options["max_tokens"], room)}
        choices = await self._server.complete(asked, options)
        return [_completion(choice) for choice in choices]

    async def _up(self, patience_s: float) -> int | None:
        await self._server.wait_until_healthy(patience_s)
        return await self._server.context()


class SamplerClient:
    """The same over an engine of this process.

    Args:
        sampler: used from `loop` only.

    Only the plain softmax can be drawn from: top-p and the like would be another distribution than
    the trained one.
    """

    def __init__(
        self, sampler: Sampler, tokenizer: PreTrainedTokenizerBase, loop: BackgroundLoop
    ) -> None:
        self.context = sampler.context
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._loop = loop

    def generate(self, prompts: Sequence[Prompt], **config: Any) -> Completions:
        """Raises: `ConfigurationError`, `SamplerError`."""
        given = VLLMClientGenerationConfig(**config)
        plain = VLLMClientGenerationConfig()
        for name in ("repetition_penalty", "top_p", "min_p", "guided_decoding_regex"):
            if getattr(given, name) != getattr(plain, name):
                raise ConfigurationError(
                    f"{name}={getattr(given, name)!r} would change the distribution that is "
                    "trained: this engine draws from the plain softmax; leave it out, or generate "
                    "with a vLLM server"
                )
        if given.top_k > 0:
            raise ConfigurationError(f"top_k={given.top_k}: as above, only top_k=-1 can be used")
        params = SamplingParams(given.max_tokens, given.temperature, tuple(given.stop or ()))
        asked = [
            tuple(prompt_ids(self._tokenizer, prompt) if isinstance(prompt, str) else prompt)
            for prompt in prompts
        ]
        ids = [each for each in asked for _ in range(given.n)]
        samples = sample_all(self._sampler, self._loop, ids, params)
        return Completions(
            [
                Completion(ids, s.token_ids, s.logprobs, (1,) * len(s.token_ids), s.finish_reason)
                for ids, s in zip(ids, samples, strict=True)
            ]
        )


def prompt_texts(prompts: Sequence[Any], trainer: Any) -> list[str]:
    """Prompts as texts, conversations by the trainer's chat template and its arguments."""
    tokenizer, options = trainer.processing_class, trainer.chat_template_kwargs
    rows = [maybe_apply_chat_template({"prompt": each}, tokenizer, **options) for each in prompts]
    return [row["prompt"] for row in rows]


def _completion(choice: Choice) -> Completion:
    ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs
    if len(ids) != len(logprobs):
        raise SamplerError(f"vLLM gave {len(ids)} ids with {len(logprobs)} logprobs")
    by_text = choice.finish_reason == "stop" and isinstance(choice.stop_reason, str)
    return Completion(
        tuple(choice.prompt_token_ids),
        tuple(ids),
        tuple(logprobs),
        (1,) * len(ids),
        "stop_string" if by_text else "stop" if choice.finish_reason == "stop" else "length",
    )
