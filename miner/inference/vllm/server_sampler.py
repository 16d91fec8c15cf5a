"""A sampler over one or more `vllm serve`: token ids in, token ids and log-probabilities out.

Invariants:
* a sample is exactly the server's reply, checked (see `vllm_replies`); it carries the version of
  the weights that the server was last known to have;
* once a server has failed, nothing is sampled from it before it has shown that it still holds
  these weights: a server that supervisord started again serves the base model.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence

from miner.inference.sampler import EngineLostError, Sample, SamplerError, SamplingParams
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.replies import ReplyRules
from miner.inference.vllm.wire import BASE_WEIGHTS


class VllmServerSampler:
    """`Sampler` that spreads conversations over servers and stays with one for each.

    Args:
        servers: at least one.
        rules: what may be asked and answered.
        seed: of all draws; each process needs another.
        tries: requests for one sample at most, over all servers.
        pause_s: pause before the second try; it doubles with each further one.
    """

    def __init__(
        self,
        servers: Sequence[VllmServer],
        rules: ReplyRules,
        *,
        seed: int = 0,
        tries: int = 3,
        pause_s: float = 0.5,
    ) -> None:
        self.servers = tuple(servers)
        self._rules = rules
        self._seeds = random.Random(seed)
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
        limit = self._rules.limit(prompt_ids, params.max_tokens)
        own = self._seeds.getrandbits(63)  # vLLM takes 64 bits with a sign
        options = self._rules.options(limit, params.temperature, params.stop, seed=own)
        failed: set[VllmServer] = set()
        for attempt in range(1, self._tries + 1):
            server = self._place(session, failed)
            version = self._version
            self._busy[server] += 1
            try:
                await self._clear_suspicion(server)
                [choice] = await server.complete(
                    list(prompt_ids), options, engine=self._engine(server, session)
                )
            except EngineLostError as error:
                self._suspects.add(server)
                failed.add(server)
                if attempt == self._tries:
                    raise EngineLostError(f"{error} ({attempt} tries)") from error
            else:
                return self._rules.sample(
                    choice.token_ids,
                    choice.logprobs.token_logprobs,
                    choice.finish_reason,
                    limit=limit,
                    weight_version=version,
                    said_by=f"{server.url}/v1/completions",
                    stop=params.stop,
                    stop_reason=choice.stop_reason,
                    cached_tokens=choice.cached_tokens,
                )
            finally:
                self._busy[server] -= 1
            await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

    async def end_session(self, session: int) -> None:
        """Forget where `session` was answered."""
        self._homes.pop(session, None)

    def weights_are(self, version: int, label: str) -> None:
        """All servers hold the weights `version` from now on and call them `label`."""
        self._version, self._label = version, label
        self._suspects.clear()

    async def engine_loss(self) -> tuple[list[str], bool]:
        """One sentence for each server that does not answer or has other weights than it should,
        and whether requests to all of these have failed, so that none was sampled from since."""
        said = await asyncio.gather(*(self._health_error(server) for server in self.servers))
        lost = {server for server, line in zip(self.servers, said, strict=True) if line}
        return [line for line in said if line], lost <= self._suspects

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _health_error(self, server: VllmServer) -> str:
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
        health_error = await self._health_error(server)
        if health_error:
            raise EngineLostError(health_error)
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

    def _engine(self, server: VllmServer, session: int | None) -> int | None:
        """Of the server's engines the conversation's own, whose cache holds its prefix; any is as
        good for a single request. Conversations in a row go to one server after the other, so that
        the number is first divided by theirs: all engines have work."""
        if session is None or server.engines == 1:
            return None
        return session // len(self.servers) % server.engines

    def _load(self, server: VllmServer) -> tuple[int, int]:
        return self._busy[server], sum(home is server for home in self._homes.values())
