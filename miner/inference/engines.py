"""Engines that generate while the trainer learns, behind one protocol.

Invariants:
* inside `playing()` every sample comes from the trainer's current weights, and carries their
  version; outside of it the engine may be asleep;
* weights travel at most once per optimizer step, and never while an episode is being played.
"""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.inference.sampler import Sampler
from miner.inference.transformers.sampler import TransformersSampler


@dataclass(frozen=True)
class EngineLoss:
    """An engine that was lost: one line, and whether its own requests saw it happen."""

    line: str
    noticed: bool


class GenerationEngine(Protocol):
    """A sampler and the trainer's weights inside it; used from the trainer's thread."""

    @property
    def sampler(self) -> Sampler:
        """The sampler."""

    def weights_changed(self, version: int) -> None:
        """The trainer's weights are those after optimizer step `version` now."""

    def sync_weights(self) -> None:
        """Have the engine hold the current weights. Raises: `EngineLostError`."""

    def playing(self) -> AbstractContextManager[None]:
        """Inside, the engine is awake and has the current weights. Raises: `EngineLostError`."""

    def engine_loss(self) -> EngineLoss | None:
        """Loss of the engine since `playing` began; None if there was none."""

    def recover(self) -> None:
        """Wait for an engine that was lost, and bring it the weights. Raises: `EngineLostError`."""

    def detach(self) -> None:
        """All ranks have done their work: end what would disturb the end of the process."""

    def close(self) -> None:
        """Let go of threads and connections."""


class EngineMemoryError(MemoryError):
    """vLLM in the trainer's process found no memory; with a smaller share of the GPU it would."""


@contextmanager
def engine_memory() -> Iterator[None]:
    """Inside, vLLM takes memory. Raises: `EngineMemoryError` where there is none."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise EngineMemoryError(str(error)) from error
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether less memory would help: by its type, or by the text that vLLM and CUDA's
    libraries give a RuntimeError where they take memory themselves, and vLLM a ValueError as it
    starts."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = {
        RuntimeError: ("out of memory", "cublas_status_alloc_failed"),
        ValueError: ("less than desired gpu memory utilization",),
    }
    found = str(error).lower()
    return any(text in found for kind in texts if isinstance(error, kind) for text in texts[kind])


def give_back_memory() -> None:
    """Have the C library return what is free to the system, where it can (glibc).

    It keeps a heap for each thread: without that, what the sampler's thread has freed stays out of
    reach of the thread that learns.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class TransformersEngine:
    """The trainer's own model generates: nothing travels, nothing sleeps."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self.sampler = sampler

    def weights_changed(self, version: int) -> None:
        self.sampler.weight_version = version

    def sync_weights(self) -> None:
        self.sampler.invalidate()

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Afterwards what sampling has held is free for learning."""
        self.sync_weights()
        yield
        self.sync_weights()
        give_back_memory()

    def engine_loss(self) -> EngineLoss | None:
        """Raises: OutOfMemoryError, which less memory would avoid."""
        if self.sampler.out_of_memory is not None:
            raise self.sampler.out_of_memory
        return None

    def recover(self) -> None:
        pass

    def detach(self) -> None:
        pass

    def close(self) -> None:
        self.sampler.close()


class NewWeights(TrainerCallback):
    """Notifies the engine of the optimizer step that the trainer's weights are from."""

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._engine.weights_changed(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._engine.weights_changed(state.global_step)


class MemoryTrial(TrainerCallback):
    """Wakes an engine that shares the trainer's GPU once, after a process's first step.

    The optimizer's states exist from then on: where engine and trainer have no memory for both,
    that ends a process of a minute, not one that learned from teachers for half an hour before it
    played. Called after `NewWeights`.
    """

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._done = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._done:
            self._done = True
            with self._engine.playing():
                pass
