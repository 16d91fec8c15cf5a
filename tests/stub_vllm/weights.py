"""The weight-transfer half of the stub: start, update, finish, or an error."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel


class OutOfOrder(Exception):
    """A call that a server in this state would fail at."""


class WeightReceiver:
    """Takes whole models from a safetensors file that trainer and server both see."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._parameters = dict(model.named_parameters())
        self._state = "ready"
        self.version = "default"

    def start(self) -> None:
        """/start_weight_update."""
        self._go("ready", "started")

    @torch.no_grad()
    def update(self, update_info: dict[str, Any]) -> None:
        """/update_weights: names, dtype_names and shapes announce what the file holds."""
        self._go("started", "updated")
        tensors = load_file(Path(update_info["file"]))
        announced = zip(
            update_info["names"], update_info["dtype_names"], update_info["shapes"], strict=True
        )
        if set(update_info["names"]) != set(self._parameters) or set(tensors) != set(
            self._parameters
        ):
            raise OutOfOrder("the weights that were sent are not those of the model")
        for name, dtype, shape in announced:
            tensor = tensors[name]
            if (f"torch.{dtype}", list(shape)) != (str(tensor.dtype), list(tensor.shape)):
                raise OutOfOrder(f"{name} was announced as {dtype} {shape}")
            self._parameters[name].copy_(tensor)

    def finish(self, version: str | None) -> None:
        """/finish_weight_update."""
        if self._state == "started":  # an update that broke off
            self._state = "updated"
        self._go("updated", "ready")
        if version is not None:
            self.version = version

    def _go(self, before: str, after: str) -> None:
        if self._state != before:
            raise OutOfOrder(f"the weight transfer is {self._state}, expected {before}")
        self._state = after
