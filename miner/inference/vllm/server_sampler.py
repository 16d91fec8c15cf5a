"""A sampler over `vllm serve`: token ids in, token ids and log-probabilities out.

Invariants:
* a sample is exactly the server's reply, checked (see `replies`); it carries the version of the
  weights that the server was last known to have;
* once the server has failed, nothing is sampled from it before it has shown that it still holds
  these weights: a server that supervisord started again serves the base model.
"""

import asyncio
import random
from collections.abc import Sequence

from miner.inference.engines import EngineLoss
from miner.inference.sampler import EngineLostError, Sample, SamplerError, SamplingParams
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.replies import ReplyRules
from miner.inference.vllm.wire import BASE_WEIGHTS


class VllmServerSampler:
    """`Sampler` over one server, in which each conversation stays with one engine.

    Args:
        server: one or several engines side by side (`--data-parallel-size`).
        rules: rules of requests and replies.
        seed: of all draws; each process needs another.
        tries: requests for one sample at most.
        pause_s: pause before the second try; it doubles with each further one.
    """

    def __init__(
        self,
        server: VllmServer,
        rules: ReplyRules,
        *,
        seed: int = 0,
        tries: int = 3,
        pause_s: float = 0.5,
    ) -> None:
        self.server = server
        self._rules = rules
        self._seeds = random.Random(seed)
        self._tries = tries
        self._pause_s = pause_s
        self._version = 0
        self._label = BASE_WEIGHTS
        self._suspect = False

    @property
    def context(self) -> int:
        return self._rules.context

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """Sample one reply; see `Sampler`.

        Raises: `EngineLostError` if the server does not answer with these weights, `SamplerError`
            for a prompt or a reply that cannot be used.
        """
        limit = self._rules.limit(prompt_ids, params.max_tokens)
        own = self._seeds.getrandbits(63)  # vLLM takes 64 bits with a sign
        options = self._rules.options(limit, params.temperature, params.stop, seed=own)
        # An engine's cache holds a conversation's prefix; any is as good for a single request.
        engines = self.server.engines
        engine = None if session is None or engines == 1 else session % engines
        for attempt in range(1, self._tries + 1):
            version = self._version
            try:
                await self._clear_suspicion()
                [choice] = await self.server.complete(list(prompt_ids), options, engine=engine)
            except EngineLostError as error:
                self._suspect = True
                if attempt == self._tries:
                    raise EngineLostError(f"{error} ({attempt} tries)") from error
            else:
                return self._rules.sample(
                    choice.token_ids,
                    choice.logprobs.token_logprobs,
                    choice.finish_reason,
                    limit=limit,
                    weight_version=version,
                    source=f"{self.server.url}/v1/completions",
                    stop=params.stop,
                    stop_reason=choice.stop_reason,
                    cached_tokens=choice.cached_tokens,
                )
            await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

    async def end_session(self, session: int) -> None:
        """Nothing is kept by session."""

    def weights_are(self, version: int, label: str) -> None:
        """The server holds the weights `version` from now on and calls them `label`."""
        self._version, self._label = version, label
        self._suspect = False

    async def engine_loss(self) -> EngineLoss | None:
        """Loss of a server that does not answer or has other weights than it should; noticed if
        requests have failed, so that none was sampled from since."""
        line = await self._health_error()
        return EngineLoss(line, noticed=self._suspect) if line else None

    async def _health_error(self) -> str:
        try:
            label = await self.server.weight_version()
        except SamplerError as error:
            return str(error)
        if label == self._label:
            return ""
        return f"{self.server.url} holds the weights {label!r} instead of {self._label!r}"

    async def _clear_suspicion(self) -> None:
        if self._suspect:
            if health_error := await self._health_error():
                raise EngineLostError(health_error)
            self._suspect = False
