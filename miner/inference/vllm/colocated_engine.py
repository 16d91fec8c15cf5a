"""vLLM in the trainer's process, as its generation engine."""

from collections.abc import Iterator
from contextlib import contextmanager

from miner.inference.engines import EngineLoss, engine_memory, is_out_of_memory
from miner.inference.sampler import EngineLostError
from miner.inference.vllm.colocated_llm import ColocatedLLM
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler


class ColocatedEngine:
    """vLLM in the trainer's process, on a GPU asleep while the trainer computes.

    TRL's own generate would sleep, and send all weights again, at every turn; here the engine wakes
    once for all that is played with the same weights, and sleeps once after it.

    Args:
        opened: the engine; one that sleeps is asleep.
        sampler: over that engine.
        sleeps: true if the engine gives its memory back in between; vLLM on a CPU cannot.
    """

    def __init__(
        self, opened: ColocatedLLM, sampler: VllmColocatedSampler, *, sleeps: bool = True
    ) -> None:
        self.sampler = sampler
        self._engine = opened
        self._sleeps = sleeps
        self._version = 0
        self._loaded: int | None = None

    def weights_changed(self, version: int) -> None:
        self._version = version

    def sync_weights(self) -> None:
        """Wakes the part of the engine that holds weights. Raises: `EngineMemoryError`."""
        if self._loaded == self._version:
            return
        with engine_memory():
            self._engine.sync_weights()
        self._loaded = self.sampler.weight_version = self._version

    @contextmanager
    def playing(self) -> Iterator[None]:
        self.sync_weights()
        if self._sleeps:
            with engine_memory():
                self._engine.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            self.sampler.settle()
            if self._sleeps and self.sampler.failure is None:  # a CUDA error would be raised again
                self._engine.llm.sleep(level=2)  # drops the weights: waking loads them again
                self._loaded = None

    def engine_loss(self) -> EngineLoss | None:
        """Raises: `EngineMemoryError`."""
        failure = self.sampler.failure
        if failure is None:
            return None
        if is_out_of_memory(failure):
            with engine_memory():
                raise failure
        return EngineLoss(
            f"the vLLM engine failed: {type(failure).__name__}: {failure}", noticed=True
        )

    def recover(self) -> None:
        """An engine that failed in this process does not come back."""
        loss = self.engine_loss()
        raise EngineLostError(
            f"{loss.line if loss else 'the vLLM engine is gone'}; start the trainer again"
        )

    def detach(self) -> None:
        """vLLM ends torch's process groups with its engine."""
        self._engine.llm.llm_engine.engine_core.shutdown()

    def close(self) -> None:
        self.sampler.close()
