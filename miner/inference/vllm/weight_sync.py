"""Bringing the trainer's weights to inference servers, and knowing that they have arrived.

Invariants:
* each push has a label, which the server is asked for afterwards: a push that the server
  does not confirm has failed;
* no push waits longer than its limit; its error then names the server, the weights
  that the server holds, and whether the server still answers;
* cached states of older weights are gone before a push counts as done.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from miner.background_loop import BackgroundLoop
from miner.inference.engines import is_out_of_memory
from miner.inference.merged_weights import merged_weights
from miner.inference.sampler import EngineLostError, SamplerError
from miner.inference.vllm.client import VllmServer

CACHE_RESETS = 20
"""Tries to empty the prefix cache; blocks of aborted requests may be held for a moment."""

CACHE_PAUSE_S = 0.25

WEIGHT_FILE = "weights-on-their-way.safetensors"
"""In the run folder; one that a kill left there is removed at the next start."""

UNFINISHED = "on their way"
"""Version of weights in transit, so that half of them is never taken for a model."""


class WeightSyncError(EngineLostError):
    """Weights did not reach an inference server."""


class WeightSyncHungError(WeightSyncError):
    """The transfer is still waiting for something: another one would wait behind it."""

    stuck = True


class WeightSync(Protocol):
    """One way for weights to travel; used from the trainer's thread."""

    def connect(self) -> None:
        """Make the connection: at the start, and again after a server was restarted."""
        ...

    def push(self, label: str) -> None:
        """Send the trainer's current weights and have the server call them `label`."""
        ...


class NcclWeightSync:
    """TRL's own path: NCCL from the trainer's GPU into the workers of one server.

    Args:
        make_generation: builds TRL's VLLMGeneration in server mode, which connects.
        device: the trainer's.
        name: sets the label on the server; TRL itself sends none.
        leads: whether this is rank 0, which alone is connected; the others help to gather weights.
    """

    def __init__(
        self,
        make_generation: Callable[[], Any],
        device: torch.device,
        name: Callable[[str], None],
        *,
        leads: bool = True,
    ) -> None:
        self._leads = leads
        self._make_generation = make_generation
        self._device = device
        self._name = name
        self._generation: Any = None

    def connect(self) -> None:
        if self._generation is None:
            self._generation = self._make_generation()
            return
        if not self._leads:
            return
        client = self._generation.vllm_client
        client.close_communicator()
        client.init_communicator(device=self._device)

    def push(self, label: str) -> None:
        self._generation.sync_weights()
        if self._leads:
            self._name(label)


def merged_generation(**options: Any) -> Any:
    """TRL's VLLMGeneration, which merges adapters beside the frozen weights instead of in them."""
    from trl.generation.vllm_generation import VLLMGeneration

    class MergedGeneration(VLLMGeneration):
        def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
            return merged_weights(self.model)

    return MergedGeneration(**options)


class FileWeightSync:
    """Weights through a file that trainer and servers both see, for `miner.inference.vllm.worker`.

    Slower than NCCL by a write and a read of the whole model, and independent of it: it reaches
    several servers, and servers without a GPU.

    Args:
        weights: the whole model's on rank 0; every rank asks.
        folder: where the file lies for as long as a push takes.
        seconds: longest wait for one control call.
        leads: whether this is rank 0, which alone sends.
    """

    def __init__(
        self,
        weights: Callable[[], dict[str, torch.Tensor]],
        servers: Sequence[VllmServer],
        loop: BackgroundLoop,
        folder: Path,
        seconds: float,
        *,
        leads: bool = True,
    ) -> None:
        self._weights = weights
        self._leads = leads
        self._servers = tuple(servers)
        self._loop = loop
        self._folder = folder
        self._seconds = seconds

    def connect(self) -> None:
        if self._leads:
            self._loop.run(self._to_all("init_weight_transfer_engine", {"init_info": {}}))

    def push(self, label: str) -> None:
        tensors = self._weights()
        if not self._leads:
            return
        file = self._folder / WEIGHT_FILE
        update = {
            "names": list(tensors),
            "dtype_names": [str(t.dtype).removeprefix("torch.") for t in tensors.values()],
            "shapes": [list(t.shape) for t in tensors.values()],
            "file": str(file.absolute()),
        }
        try:
            save_file(tensors, file)
            self._loop.run(self._update(update, label))
        finally:
            file.unlink(missing_ok=True)

    async def _update(self, update: dict[str, Any], label: str) -> None:
        try:
            await self._to_all("start_weight_update", {})
            await self._to_all("update_weights", {"update_info": update})
            await self._to_all("finish_weight_update", {"weight_version": label})
        except SamplerError:
            # A server that is in the middle of an update refuses to start another one.
            with suppress(SamplerError):
                await self._to_all("finish_weight_update", {})
            raise

    async def _to_all(self, path: str, body: object) -> None:
        calls = (server.post(path, body, seconds=self._seconds) for server in self._servers)
        ended = await asyncio.gather(*calls, return_exceptions=True)  # none is left reading
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure


def connect_bounded(
    sync: WeightSync, servers: Sequence[VllmServer], loop: BackgroundLoop, *, seconds: float
) -> None:
    """Connect. Raises: `WeightSyncError`, one sentence, within about `seconds`."""
    with _diagnosed("the weight transfer could not be set up", seconds, servers, loop):
        bounded(sync.connect, seconds)


def push_confirmed(
    sync: WeightSync,
    label: str,
    servers: Sequence[VllmServer],
    loop: BackgroundLoop,
    *,
    seconds: float,
    leads: bool = True,
) -> None:
    """Push; rank 0 then empties the caches and checks that every server has the weights `label`.

    Raises: `WeightSyncError`, one sentence with the servers' states, within about `seconds`.
    """
    with _diagnosed(f"weights {label!r} did not arrive", seconds, servers, loop):
        if leads:
            for server in servers:
                loop.run(server.set_weight_version(UNFINISHED))
        bounded(lambda: sync.push(label), seconds)
        if leads:
            loop.run(_settle(servers, label))


@contextmanager
def _diagnosed(
    what: str, seconds: float, servers: Sequence[VllmServer], loop: BackgroundLoop
) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        why = f"it was not done after {seconds:g} s"
        raise WeightSyncHungError(_diagnosis(what, why, servers, loop)) from error
    except SamplerError as error:
        raise WeightSyncError(_diagnosis(what, str(error), servers, loop)) from error
    except Exception as error:  # of NCCL, vLLM's assertions, TRL's HTTP client, the disk
        if is_out_of_memory(error):
            raise
        why = f"{type(error).__name__}: {error}"
        raise WeightSyncError(_diagnosis(what, why, servers, loop)) from error


def bounded(work: Callable[[], None], seconds: float) -> None:
    """Run `work` on a dedicated thread, because nothing else ends the wait for a broadcast.

    The thread stays behind if it hangs, with what it has started.
    Raises: TimeoutError, or what `work` raised.
    """
    failure: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="weight-sync", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if failure:
        raise failure[0]


async def _settle(servers: Sequence[VllmServer], label: str) -> None:
    for server in servers:
        for _ in range(CACHE_RESETS):
            if await server.reset_prefix_cache():
                break
            await asyncio.sleep(CACHE_PAUSE_S)
        else:
            raise SamplerError(f"{server.url} kept cached states of older weights")
        held = await server.weight_version()
        if held != label:
            raise SamplerError(f"{server.url} calls its weights {held!r} afterwards")


def _diagnosis(what: str, why: str, servers: Sequence[VllmServer], loop: BackgroundLoop) -> str:
    """One line: the push, its failure, and each server's state."""

    async def state(server: VllmServer) -> str:
        if await server.health_error():
            return f"{server.url} does not answer"
        try:
            return f"{server.url} answers and holds {await server.weight_version()!r}"
        except SamplerError:
            return f"{server.url} answers, but not for its weights"

    async def states() -> list[str]:
        return list(await asyncio.gather(*(state(server) for server in servers)))

    return f"{what}: {why}; {', '.join(loop.run(states()))}"
