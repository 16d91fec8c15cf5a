"""From weights in memory to a folder that the grader loads.

Invariant: the result is the base model's folder with other weights: same companion files, same
dtypes, so what held-out evaluation played in that dtype is what is published.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from miner.publishing.base_files import copy_companions, keep_only_weights
from miner.publishing.structure import by_dtype, read_headers

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_trained_model(
    base: Path, model: PreTrainedModel, weights: Mapping[str, torch.Tensor], destination: Path
) -> None:
    """Write `weights` into the existing folder `destination`, all else as `base` has it.

    Args:
        base: folder of the base model that training started from.
        model: names the weights as its files do; its own values are not read.
        weights: all of it, adapters merged; each is cast to the dtype that it has in the base.

    Raises: `OSError` if the disk refuses.
    """
    common = base_dtype(base)
    in_base = read_headers(base)

    def cast(name: str, tensor: torch.Tensor) -> torch.Tensor:
        own = in_base[name].dtype if name in in_base else ""
        return tensor.to(_DTYPES.get(own, common)) if tensor.is_floating_point() else tensor

    held = {name: cast(name, tensor).contiguous() for name, tensor in weights.items()}
    model.save_pretrained(destination, state_dict=held)
    keep_only_weights(destination)
    copy_companions(base, destination)


def base_dtype(base: Path) -> torch.dtype:
    """The dtype that most parameters of `base` have; bfloat16 where it is not an ordinary float."""
    return _DTYPES.get(by_dtype(read_headers(base)).most_common(1)[0][0], torch.bfloat16)
