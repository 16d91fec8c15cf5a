"""The one merge of adapters, for sampling, evaluation and publishing.

Invariants:
* the model is left alone: merging into a bfloat16 base in place and taking it out again would round
  frozen weights at every push;
* an adapted weight is merged in float32 and rounded once, to the dtype that the base is held in.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from peft import PeftModel

from miner.distributed.zero import gathered


def merged_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights under the base model's names, tied ones once, on the device of the model,
    and then the buffers that its files hold, such as the biases of a router.

    Under ZeRO-3 this is collective, and a tensor is whole only until the next one is asked for.
    """
    for name, parameter in model.named_parameters():
        if isinstance(model, PeftModel) and model.prefix in name:
            continue
        path, adapted, _ = name.partition(".base_layer.weight")
        layer = model.get_submodule(path) if adapted else None
        base_name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        with gathered([parameter, *_adapters(layer)]):
            yield base_name, parameter.data if layer is None else _merged(parameter.data, layer)
    yield from _stored_buffers(model).items()


def weights_on_cpu(
    model: torch.nn.Module,
    *,
    keep: bool = True,
    dtype: torch.dtype | None = None,
    stored: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
) -> dict[str, torch.Tensor]:
    """Copies of `merged_weights`; collective under ZeRO-3.

    Args:
        keep: true if this process needs them; otherwise it only takes part, and returns nothing.
        dtype: of the copies; None keeps that of each weight. Buffers keep theirs: a router's bias
            that is rounded chooses other experts.
        stored: gives one of them the names and shapes of the copies.
    """
    copies = {}
    buffers = _stored_buffers(model)
    for name, weight in merged_weights(model):
        kind = weight.dtype if name in buffers else dtype or weight.dtype
        for copied, part in stored({name: weight}).items() if keep else ():
            copies[copied] = part.to("cpu", kind, copy=True).contiguous()
    return copies


def _stored_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    stored = base.state_dict().keys()
    return {name: buffer for name, buffer in base.named_buffers() if name in stored}


def _adapters(layer: Any) -> list[torch.nn.Parameter]:
    """The parameters of all active adapters of a LoRA layer; none for None."""
    names = layer.active_adapters if layer is not None else ()
    return [half[name].weight for name in names for half in (layer.lora_A, layer.lora_B)]


@torch.no_grad()
def _merged(weight: torch.Tensor, layer: Any) -> torch.Tensor:
    """`weight` of a LoRA layer plus what its active adapters add."""
    whole = weight.float()
    for name in layer.active_adapters:
        down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
        added = layer.scaling[name] * (up.float() @ down.float())
        whole = whole + (added.T if layer.fan_in_fan_out else added)
    return whole.to(weight.dtype)
