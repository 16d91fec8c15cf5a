"""The affinetes HTTP API of one environment server, as typed calls.

Invariants:
* every request names the opponent and sends actions as strings;
* a reply is untrusted: its size is bounded before it is parsed, its types are checked while it is;
* every failure leaves as `InfrastructureError` (no, late, broken, endless or "episode lost" reply)
  or `ProtocolError` (a reply of another shape, or about another game than the one asked for).
"""

from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from miner.environments.affinetes_wire import (
    EVALUATE_REPLY_LIMIT,
    STEP_REPLY_LIMIT,
    ApiInfo,
    ApiReply,
    Envelope,
    EvaluateReply,
    StepReply,
)
from miner.environments.base import EpisodeTask
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.servers import EnvironmentServer
from miner.http_replies import CONNECT_S, excerpt

_LOST: Final = frozenset({"no_episode_id", "episode_not_found", "episode_done", "not_your_turn"})

_T = TypeVar("_T")


class AffinetesClient(EnvironmentServer):
    """Client of one environment server. Usable from any event loop; one connection pool per loop.

    Args:
        url: base URL of the server, `http://host:port`.
        reply_timeout_s: longest wait for the reply of any call but `evaluate`.
    """

    what = "an affinetes environment server"
    too_large_is_away = True  # or an evaluation would score it 0

    def __init__(self, url: str, *, reply_timeout_s: float = 30.0) -> None:
        super().__init__(url)
        self._timeout = aiohttp.ClientTimeout(total=reply_timeout_s, sock_connect=CONNECT_S)

    async def reset(self, task: EpisodeTask) -> StepReply:
        """Start `task`; the reply is checked to be about that very game and opponent."""
        payload = {"task_id": task.task_id, "seed": task.seed, "opponent": task.opponent}
        reply = await self._call("reset", payload, StepReply)
        started = (reply.info.task_id, reply.info.seed, reply.info.opponent_type)
        if started != (task.task_id, task.seed, task.opponent) or not reply.episode_id:
            raise ProtocolError(
                f"{self.url}/reset was asked for task {task.task_id}, seed {task.seed}, opponent "
                f"{task.opponent!r} but started {started} as episode {reply.episode_id!r}; it is "
                "not an affinetes OpenSpiel server of the known kind",
                server=self.url,
            )
        return reply

    async def step(self, episode_id: str, action: int) -> StepReply:
        """Ask for `action`. Raises: `InfrastructureError` if the server lost the episode."""
        payload = {"action": str(action), "episode_id": episode_id}
        reply = await self._call("step", payload, StepReply)
        fault = reply.info.error
        if fault is not None and fault.type in _LOST:
            raise InfrastructureError(
                f"{self.url}/step lost the episode ({fault.type}); play its task again",
                server=self.url,
            )
        if fault is not None:
            raise ProtocolError(
                f"{self.url}/step refused action {action}, which its own observation lists as "
                f"legal: {fault.type} {excerpt(fault.message)}",
                server=self.url,
            )
        if reply.episode_id != episode_id:
            raise ProtocolError(
                f"{self.url}/step answered for another episode than the one asked", server=self.url
            )
        if reply.truncated:
            raise InfrastructureError(
                f"{self.url}/step broke the episode off; play its task again", server=self.url
            )
        return reply

    async def stop(self, episode_id: str) -> None:
        """Let the server forget an episode (also one it does not know)."""
        await self._call("stop", {"episode_id": episode_id}, dict[str, Any])

    async def evaluate(
        self, task: EpisodeTask, *, model: str, base_url: str, api_key: str, timeout_s: int
    ) -> EvaluateReply:
        """Have the server play a graded episode against the chat endpoint at `base_url`.

        Args:
            timeout_s: wall-clock limit of the episode on the server; waiting ends a little later.
        """
        payload = {
            "task_id": task.task_id,
            "seed": task.seed,
            "opponent": task.opponent,
            "model": model,
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout_s,
            "temperature": 0.0,
        }
        patience = aiohttp.ClientTimeout(total=timeout_s + 10.0, sock_connect=CONNECT_S)
        return await self._call(
            "evaluate", payload, EvaluateReply, limit=EVALUATE_REPLY_LIMIT, timeout=patience
        )

    async def api_info(self) -> ApiInfo:
        """Name and version of the server's API, by its own account."""
        path = "openapi.json"
        body = await self._request("GET", path, limit=STEP_REPLY_LIMIT, patience=self._timeout)
        return self._decode(ApiReply, body, path).info

    async def _call(
        self,
        path: str,
        payload: dict[str, Any],
        kind: type[_T],
        *,
        limit: int = STEP_REPLY_LIMIT,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 (aiohttp's own object)
    ) -> _T:
        data = msgspec.json.encode(payload)
        body = await self._request(
            "POST", path, data, limit=limit, patience=timeout or self._timeout
        )
        envelope = self._decode(Envelope, body, path)
        if envelope.status != "success":
            raise InfrastructureError(
                f"{self.url}/{path} reports {excerpt(envelope.status)}: "
                f"{excerpt(envelope.error or 'no reason given')}",
                server=self.url,
            )
        return self._decode(kind, envelope.result, path)
