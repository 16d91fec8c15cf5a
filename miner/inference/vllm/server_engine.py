"""vLLM in separate processes, as the trainer's generation engine."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from miner.background_loop import BackgroundLoop
from miner.distributed.ranks import Ranks
from miner.inference.engines import EngineLoss
from miner.inference.sampler import EngineLostError
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import WeightSync, WeightSyncError
from miner.inference.vllm.wire import BASE_WEIGHTS

logger = logging.getLogger(__name__)

HEALTH_PAUSE_S = 0.5


class ServerEngine:
    """vLLM behind one server, shared by all ranks: each sends its own episodes' requests.

    All methods but `sampler` and `close` are collective.

    Args:
        sampler: used from `loop` only.
        sync: the way for weights.
        start_seconds: longest wait for a server that starts.
        alive: called now and then while the server is waited for.
    """

    def __init__(
        self,
        sampler: VllmServerSampler,
        loop: BackgroundLoop,
        sync: WeightSync,
        *,
        start_seconds: float,
        ranks: Ranks,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.sampler = sampler
        self._loop = loop
        self._sync = sync
        self._start_seconds = start_seconds
        self._ranks = ranks
        self._alive = alive
        self._version = 0
        self._pushed: int | None = None

    def weights_changed(self, version: int) -> None:
        self._version = version

    def sync_weights(self) -> None:
        """A server without a push has the base's weights.

        A server that died since the last push is waited for; a push that fails is repeated.
        """
        if self._pushed == self._version:
            return
        if self._pushed is None and self._version == 0 and self._ranks.lead_does(self._holds_base):
            self._arrived(BASE_WEIGHTS)
            return
        try:
            self._push()
        except WeightSyncError as error:
            logger.warning("%s", error)
            self.recover()

    @contextmanager
    def playing(self) -> Iterator[None]:
        self.sync_weights()
        yield

    def engine_loss(self) -> EngineLoss | None:
        own = self._loop.run(self.sampler.engine_loss())
        lines = dict.fromkeys(loss.line for loss in self._ranks.gather(own) if loss)
        # A rank that saw nothing, since the server failed during another rank's requests, has lost
        # nothing.
        noticed = own is None or own.noticed
        return EngineLoss("; ".join(lines), noticed) if lines else None

    def recover(self) -> None:
        self._ranks.lead_does(
            lambda: wait_until_healthy(
                self.sampler.server, self._loop, self._start_seconds, self._alive
            )
        )
        self._push()
        logger.warning("the inference server is back, with the weights of step %d", self._version)

    def detach(self) -> None:
        pass

    def close(self) -> None:
        self._loop.run(self.sampler.server.close())

    def _push(self) -> None:
        """Push the weights. Raises: on all ranks, the error of any one."""
        label = str(self._version)
        mine: WeightSyncError | None = None
        try:
            self._sync.push(label)
        except WeightSyncError as error:
            mine = error
        for failure in self._ranks.gather(mine):
            if failure:
                raise failure
        self._arrived(label)

    def _arrived(self, label: str) -> None:
        self._pushed = self._version
        self.sampler.weights_are(self._version, label)

    def _holds_base(self) -> bool:
        return self._loop.run(self.sampler.server.weight_version()) == BASE_WEIGHTS


def wait_until_healthy(
    server: VllmServer, loop: BackgroundLoop, seconds: float, alive: Callable[[], None]
) -> None:
    """Return once the server answers. Raises: `EngineLostError` after `seconds`."""
    if loop.run(server.wait_until_healthy(seconds, pause_s=HEALTH_PAUSE_S, alive=alive)):
        raise EngineLostError(
            f"the inference server {server.url} did not answer for {seconds:g} s: see its own last "
            "lines, or raise rollout.start_seconds"
        )
