"""A sampler over one or more `vllm serve`: token ids in, token ids and log-probabilities out.

Invariants:
* the distribution drawn from is the softmax at the given temperature and nothing else: every
  sampling parameter is named in each request, because vLLM fills in what is not from the model's
  generation_config.json (top-p, top-k, repetition penalty);
* a sample is exactly what the server said, checked; it carries the version of the weights that the
  server was last known to have;
* once a server has failed, nothing is sampled from it before it has shown that it still holds
  these weights: a server that supervisord started again serves the base model.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from miner.rollout.sampler import EngineLostError, Sample, SamplerError, SamplingParams
from miner.rollout.vllm_client import VllmServer
from miner.rollout.vllm_wire import BASE_WEIGHTS, Choice

LOGPROB_SLACK = 1e-3
"""A logarithm of a probability may be this far above 0 by rounding."""

LOWEST_LOGPROB = -9999.0
"""What vLLM writes for a probability of 0: no token can have been drawn with it."""


class VllmServerSampler:
    """`Sampler` that spreads conversations over servers and stays with one for each.

    Args:
        servers: at least one.
        eos_token_ids: ids that end a reply.
        vocabulary: ids are below this.
        context: longest prompt and reply together, in tokens.
        tries: requests for one sample at most, over all servers.
        pause_s: pause before the second try; it doubles with each further one.
    """

    def __init__(
        self,
        servers: Sequence[VllmServer],
        eos_token_ids: Collection[int],
        *,
        vocabulary: int,
        context: int,
        tries: int = 3,
        pause_s: float = 0.5,
    ) -> None:
        self.servers = tuple(servers)
        self._eos = frozenset(eos_token_ids)
        self._vocabulary = vocabulary
        self._context = context
        self._tries = tries
        self._pause_s = pause_s
        self._version = 0
        self._label = BASE_WEIGHTS
        self._busy: Counter[VllmServer] = Counter(dict.fromkeys(self.servers, 0))
        self._suspects: set[VllmServer] = set()
        self._homes: dict[int, VllmServer] = {}

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """Sample one reply; see `Sampler`.

        Raises: `EngineLostError` if no server is left that answers with these weights,
            `SamplerError` for a prompt or a reply that cannot be used.
        """
        limit = min(params.max_tokens, self._room(prompt_ids))
        options = sampling_options(limit, params.temperature, self._eos)
        failed: set[VllmServer] = set()
        for attempt in range(1, self._tries + 1):
            server = self._place(session, failed)
            version = self._version
            self._busy[server] += 1
            try:
                await self._clear_suspicion(server)
                choice = await server.complete(list(prompt_ids), options)
            except EngineLostError as error:
                self._suspects.add(server)
                failed.add(server)
                if attempt == self._tries:
                    raise EngineLostError(f"{error} ({attempt} tries)") from error
            else:
                return self._checked(choice, limit, server, version)
            finally:
                self._busy[server] -= 1
            await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

    async def end_session(self, session: int) -> None:
        """Forget where `session` was answered."""
        self._homes.pop(session, None)

    @property
    def weight_version(self) -> int:
        """Version of the weights that the servers have."""
        return self._version

    def weights_are(self, version: int, label: str) -> None:
        """All servers hold the weights `version` from now on and call them `label`."""
        self._version, self._label = version, label
        self._suspects.clear()

    async def strayed(self) -> list[str]:
        """One sentence for each server that does not answer or has other weights than it should."""
        said = await asyncio.gather(*(self._complaint(server) for server in self.servers))
        return [sentence for sentence in said if sentence]

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _complaint(self, server: VllmServer) -> str:
        try:
            label = await server.weight_version()
        except SamplerError as error:
            return str(error)
        if label == self._label:
            return ""
        return f"{server.url} holds the weights {label!r} instead of {self._label!r}"

    async def _clear_suspicion(self, server: VllmServer) -> None:
        if server not in self._suspects:
            return
        complaint = await self._complaint(server)
        if complaint:
            raise EngineLostError(complaint)
        self._suspects.discard(server)

    def _place(self, session: int | None, failed: Collection[VllmServer]) -> VllmServer:
        """The conversation's own server, whose cache holds its prefix, else the least busy one."""
        home = self._homes.get(session) if session is not None else None
        if home is None or home in failed:
            able = [server for server in self.servers if server not in failed] or self.servers
            home = min(able, key=lambda server: (server in self._suspects, self._load(server)))
            if session is not None:
                self._homes[session] = home
        return home

    def _load(self, server: VllmServer) -> tuple[int, int]:
        return self._busy[server], sum(home is server for home in self._homes.values())

    def _room(self, prompt_ids: Sequence[int]) -> int:
        """How many tokens a reply to `prompt_ids` may have at most."""
        if not prompt_ids or not 0 <= min(prompt_ids) <= max(prompt_ids) < self._vocabulary:
            raise SamplerError(
                f"a prompt of {len(prompt_ids)} ids is empty or has ids outside "
                f"0..{self._vocabulary - 1}: use the tokenizer that belongs to the model"
            )
        room = self._context - len(prompt_ids)
        if room < 1:
            raise SamplerError(
                f"a prompt of {len(prompt_ids)} ids leaves no room for a reply in a context of "
                f"{self._context}: lower the episode's token limit"
            )
        return room

    def _checked(self, choice: Choice, limit: int, server: VllmServer, version: int) -> Sample:
        """The reply as a sample. Raises: `SamplerError`, saying what no engine may answer."""
        trouble = reply_trouble(choice, limit, self._vocabulary, self._eos)
        if trouble:
            raise SamplerError(
                f"{server.url}/v1/completions {trouble}: check its version and flags"
            )
        return Sample(
            token_ids=tuple(choice.token_ids),
            logprobs=tuple(min(0.0, value) for value in choice.logprobs.token_logprobs),
            finish_reason="stop" if choice.finish_reason == "stop" else "length",
            weight_version=version,
        )


def sampling_options(limit: int, temperature: float, eos: Collection[int]) -> dict[str, Any]:
    """vLLM's sampling parameters for the plain softmax, none left to the model's defaults."""
    return {
        "max_tokens": limit,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(eos),
        "logprobs": 0,
    }


def reply_trouble(choice: Choice, limit: int, vocabulary: int, eos: Collection[int]) -> str:
    """What is wrong with a reply of at most `limit` tokens, "" if nothing is."""
    ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs
    if not 1 <= len(ids) <= limit or len(ids) != len(logprobs):
        return f"gave {len(ids)} ids with {len(logprobs)} logprobs, asked for 1 to {limit} of both"
    if not 0 <= min(ids) <= max(ids) < vocabulary:
        return f"gave ids outside 0..{vocabulary - 1}"
    if not all(math.isfinite(v) and LOWEST_LOGPROB < v <= LOGPROB_SLACK for v in logprobs):
        return f"gave logprobs that no drawn token can have ({min(logprobs)} to {max(logprobs)})"
    if any(token in eos for token in ids[:-1]):
        return "went on after the token that ends a reply"
    if choice.finish_reason not in ("stop", "length"):
        return f"ended a reply with {choice.finish_reason!r}"
    if (choice.finish_reason == "stop") != (ids[-1] in eos):
        return f"ended a reply with {choice.finish_reason!r} on the id {ids[-1]}"
    if choice.finish_reason == "length" and len(ids) < limit:
        return f"cut a reply off after {len(ids)} of {limit} tokens"
    return ""
