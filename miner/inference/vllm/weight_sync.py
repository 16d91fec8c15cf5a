"""Bringing the trainer's weights to the inference server, and knowing that they have arrived.

They travel by a file that trainer and server both see: it needs no process group that a server
would have to join again after a restart, and a call that hangs ends by its own time limit.

Invariants:
* each push has a label, which the server is asked for afterwards: a push that the server does not
  confirm has failed;
* no call waits longer than its limit; the error then names the server, the weights that it holds,
  and whether it still answers;
* cached states of older weights are gone before a push counts as done.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from miner.background_loop import BackgroundLoop
from miner.config.run_files import WEIGHT_FILE
from miner.inference.sampler import EngineLostError, SamplerError
from miner.inference.vllm.client import VllmServer

UNFINISHED = "on their way"
"""Version of weights in transit, so that half of them is never taken for a model."""


class WeightSyncError(EngineLostError):
    """Weights did not reach the inference server."""


class WeightSync:
    """Sends weights to one server, for `miner.inference.vllm.worker`; used from the trainer's
    thread.

    Args:
        weights: the whole model's on rank 0; collective.
        loop: that the server's client is used from.
        folder: folder of the file during a push.
        seconds: longest wait for the server to load them.
        leads: true if this is rank 0, which alone sends.
    """

    def __init__(
        self,
        weights: Callable[[], dict[str, torch.Tensor]],
        server: VllmServer,
        loop: BackgroundLoop,
        folder: Path,
        seconds: float,
        *,
        leads: bool = True,
    ) -> None:
        self._weights = weights
        self._server = server
        self._loop = loop
        self._file = folder / WEIGHT_FILE
        self._seconds = seconds
        self._leads = leads

    def push(self, label: str) -> None:
        """Have the server hold the current weights, called `label`, and no cached states of others.

        Raises: `WeightSyncError`, one sentence with the server's state.
        """
        tensors = self._weights()
        if not self._leads:
            return
        try:
            self._loop.run(self._server.set_weight_version(UNFINISHED))
            save_file(tensors, self._file)
            self._loop.run(self._load(tensors, label))
            self._loop.run(self._settle(label))
        except (SamplerError, SafetensorError, OSError) as error:
            state = self._loop.run(self._state())
            raise WeightSyncError(f"weights {label!r} did not arrive: {error}; {state}") from error
        finally:
            self._file.unlink(missing_ok=True)

    async def _load(self, tensors: dict[str, torch.Tensor], label: str) -> None:
        update = {
            "names": list(tensors),
            "dtype_names": [str(t.dtype).removeprefix("torch.") for t in tensors.values()],
            "shapes": [list(t.shape) for t in tensors.values()],
            "file": str(self._file.absolute()),
        }
        post, seconds = self._server.post, self._seconds
        try:
            await post("start_weight_update", {})
            await post("update_weights", {"update_info": update}, seconds=seconds)
            await post("finish_weight_update", {"weight_version": label}, seconds=seconds)
        except SamplerError:
            # A server that is in the middle of an update refuses to start another one.
            with suppress(SamplerError):
                await post("finish_weight_update", {})
            raise

    async def _settle(self, label: str) -> None:
        await self._server.reset_prefix_cache()
        held = await self._server.weight_version()
        if held != label:
            raise SamplerError(f"{self._server.url} calls its weights {held!r} afterwards")

    async def _state(self) -> str:
        if await self._server.health_error():
            return f"{self._server.url} does not answer"
        try:
            return f"{self._server.url} answers and holds {await self._server.weight_version()!r}"
        except SamplerError:
            return f"{self._server.url} answers, but not for its weights"
