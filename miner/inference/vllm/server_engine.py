"""vLLM in separate processes, as the trainer's generation engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from miner.background_loop import BackgroundLoop
from miner.distributed.ranks import Ranks
from miner.inference.engines import EngineLoss
from miner.inference.sampler import EngineLostError
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import (
    WeightSync,
    WeightSyncError,
    WeightSyncHungError,
    connect_bounded,
    push_confirmed,
)
from miner.inference.vllm.wire import BASE_WEIGHTS

logger = logging.getLogger(__name__)

HEALTH_PAUSE_S = 0.5


class ServerEngine:
    """vLLM in separate processes, shared by all ranks: each sends its own episodes' requests.

    All methods but `sampler` and `close` are collective.

    Args:
        sampler: used from `loop` only.
        sync: the way for weights; `connect` comes first.
        start_seconds: longest wait for a server that starts.
        sync_seconds: longest push.
        alive: called now and then while a server is waited for.
    """

    def __init__(
        self,
        sampler: VllmServerSampler,
        loop: BackgroundLoop,
        sync: WeightSync,
        *,
        start_seconds: float,
        sync_seconds: float,
        ranks: Ranks,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.sampler = sampler
        self._loop = loop
        self._sync = sync
        self._start_seconds = start_seconds
        self._sync_seconds = sync_seconds
        self._ranks = ranks
        self._alive = alive
        self._version = 0
        self._pushed: int | None = None

    def connect(self) -> None:
        """Let the servers meet the trainer, once before anything is played."""
        sync, servers = self._sync, self.sampler.servers
        self._together(
            lambda: connect_bounded(sync, servers, self._loop, seconds=self._sync_seconds)
        )

    def weights_changed(self, version: int) -> None:
        self._version = version

    def sync_weights(self) -> None:
        """A server without a push has the base's weights.

        A server that died since the last push is waited for; a push that fails is made once more,
        over a new connection.
        """
        if self._pushed == self._version:
            return
        if (
            self._pushed is None
            and self._version == 0
            and self._ranks.lead_does(lambda: self._all_hold(BASE_WEIGHTS))
        ):
            self._arrived(BASE_WEIGHTS)
            return
        try:
            self._push()
        except WeightSyncHungError:
            raise
        except WeightSyncError as error:
            logger.warning("%s", error)
            self.recover()

    @contextmanager
    def playing(self) -> Iterator[None]:
        self.sync_weights()
        yield

    def engine_loss(self) -> EngineLoss | None:
        said, noticed = self._loop.run(self.sampler.engine_loss())
        lines = dict.fromkeys(line for some in self._ranks.gather(said) for line in some)
        # A rank that saw nothing, since the server failed during another rank's requests, has lost
        # nothing.
        return EngineLoss("; ".join(lines), noticed=noticed or not said) if lines else None

    def recover(self) -> None:
        self._ranks.lead_does(
            lambda: wait_until_healthy(
                self.sampler.servers, self._loop, self._start_seconds, self._alive
            )
        )
        self.connect()
        self._push()
        logger.warning("the inference server is back, with the weights of step %d", self._version)

    def detach(self) -> None:
        pass

    def close(self) -> None:
        self._loop.run(self.sampler.close())

    def _push(self) -> None:
        sync, label = self._sync, str(self._version)
        self._together(
            lambda: push_confirmed(
                sync,
                label,
                self.sampler.servers,
                self._loop,
                seconds=self._sync_seconds,
                leads=self._ranks.leads,
            )
        )
        self._arrived(label)

    def _together(self, work: Callable[[], None]) -> None:
        """Do `work` on every rank. Raises: on all of them, the error of any one."""
        mine: WeightSyncError | None = None
        try:
            work()
        except WeightSyncError as error:
            mine = error
        failures = [failure for failure in self._ranks.gather(mine) if failure]
        if failures:  # one that hangs anywhere is not retried on any rank
            raise max(failures, key=lambda failure: failure.stuck)

    def _arrived(self, label: str) -> None:
        self._pushed = self._version
        self.sampler.weights_are(self._version, label)

    def _all_hold(self, label: str) -> bool:
        return all(
            self._loop.run(server.weight_version()) == label for server in self.sampler.servers
        )


def wait_until_healthy(
    servers: Sequence[VllmServer],
    loop: BackgroundLoop,
    seconds: float,
    alive: Callable[[], None],
) -> None:
    """Return once every server answers. Raises: `EngineLostError` after `seconds`."""
    end = time.monotonic() + seconds
    for server in servers:
        left = end - time.monotonic()
        if loop.run(server.wait_until_healthy(left, pause_s=HEALTH_PAUSE_S, alive=alive)):
            raise EngineLostError(
                f"the inference server {server.url} did not answer for {seconds:g} s: see its "
                "own last lines, or raise rollout.start_seconds"
            )
