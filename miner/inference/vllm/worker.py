"""vLLM's side of weights that travel by NCCL or by a file: a backend that its workers load.

`vllm serve --weight-transfer-config '{"backend":"nccl_or_file"}' --worker-extension-cls
miner.inference.vllm.worker.NcclOrFile`, with this package on PYTHONPATH, has each worker import
this module, which registers the backend. It is vLLM's own for NCCL, and takes a safetensors file
that this host sees as well: for several servers, for a CPU, and for a host where NCCL fails. The
trainer's side is `miner.inference.vllm.weight_sync`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from miner.inference.vllm.reload import finish_reload
from miner.inference.vllm.wire import NCCL_OR_FILE


@dataclass(frozen=True)
class NoConnection:
    """Of /init_weight_transfer_engine with nothing in it: a file needs no connection."""


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


class NcclOrFileEngine(NCCLWeightTransferEngine):
    """vLLM's NCCL backend; a whole model may come by a file instead."""

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        """See the base class."""
        return super().parse_init_info(init_dict) if init_dict else NoConnection()

    def init_transfer_engine(self, init_info: Any) -> None:
        """See the base class."""
        if not isinstance(init_info, NoConnection):
            super().init_transfer_engine(init_info)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See the base class."""
        try:
            if "file" in update_info:
                self.model.load_weights(WeightFile(**update_info).tensors())
                if self.device.type != "cpu":
                    torch.accelerator.synchronize()
            else:
                super().update_weights(update_info)
        except BaseException:
            # A model in the middle of a reload has no tensors, and the first request would end the
            # server. With what could be loaded it waits for the next push.
            self.finish_weight_update()
            raise

    def finish_weight_update(self) -> None:
        """See the base class."""
        finish_reload(self.model, self.model_config, on_cpu=self.device.type == "cpu")


WeightTransferEngineFactory.register_engine(NCCL_OR_FILE, NcclOrFileEngine)


class NcclOrFile:
    """The class for `--worker-extension-cls`: its module brings the backend."""
