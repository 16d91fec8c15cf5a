"""vLLM's side of weights that travel by a file: a backend that its workers load.

`vllm serve --weight-transfer-config '{"backend":"file"}' --worker-extension-cls
miner.inference.vllm.worker.WeightsByFile`, with this package on PYTHONPATH, has each worker import
this module, which registers the backend. It takes a safetensors file that this host sees. The
trainer's side is `miner.inference.vllm.weight_sync`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

from miner.inference.vllm.reload import finish_reload
from miner.inference.vllm.wire import FILE_BACKEND


@dataclass(frozen=True)
class NoConnection:
    """Arguments of /init_weight_transfer_engine: a file needs no connection."""


@dataclass(frozen=True)
class WeightFile:
    """Arguments of /update_weights: a safetensors file and its expected content."""

    file: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One by one, on the CPU. Raises: ValueError where the file holds something else."""
        announced = zip(self.names, self.dtype_names, self.shapes, strict=True)
        with safe_open(self.file, "pt") as file:
            for name, dtype, shape in announced:
                tensor = file.get_tensor(name)
                if (str(tensor.dtype), list(tensor.shape)) != (f"torch.{dtype}", shape):
                    raise ValueError(f"{name} was announced as {dtype} {shape}")
                yield name, tensor


class FileEngine(WeightTransferEngine[Any, Any]):
    """Backend that loads a whole model from a file."""

    init_info_cls = NoConnection
    update_info_cls = WeightFile

    def init_transfer_engine(self, init_info: NoConnection) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self.receive_weights(self.parse_update_info(update_info))
            if self.device.type != "cpu":
                torch.accelerator.synchronize()
        except BaseException:
            # A model in the middle of a reload has no tensors, and the first request would end the
            # server. With what could be loaded it waits for the next push.
            self.finish_weight_update()
            raise

    def receive_weights(self, update_info: WeightFile) -> None:
        self.model.load_weights(update_info.tensors())

    def finish_weight_update(self) -> None:
        finish_reload(self.model, self.model_config, on_cpu=self.device.type == "cpu")

    def shutdown(self) -> None:
        pass


WeightTransferEngineFactory.register_engine(FILE_BACKEND, FileEngine)


class WeightsByFile:
    """The class for `--worker-extension-cls`: its module brings the backend."""
