"""From weights in memory to a folder that the grader loads.

Invariant: the result is the base model's folder with other weights: same companion files, and each
tensor by the name, in the shape and in the dtype that it has in the base, so what held-out
evaluation played in that dtype is what is published.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, __version__
from transformers.core_model_loading import Concatenate, revert_weight_conversion

from miner.publishing.base_files import copy_companions, keep_only_weights
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import TensorEntry, by_dtype, read_headers

logger = logging.getLogger(__name__)

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_trained_model(
    base: Path, model: PreTrainedModel, weights: Mapping[str, torch.Tensor], destination: Path
) -> None:
    """Write `weights` into the existing folder `destination`, all else as `base` has it.

    Args:
        base: folder of the base model that training started from.
        model: was loaded from `base`, or from a checkpoint of it; its own values are not read.
        weights: all of it by the model's names, adapters merged.

    Raises: `UnverifiedModelError` if a tensor has another shape in `base`; `OSError` if the disk
        refuses.
    """
    common = base_dtype(base)
    in_base = read_headers(base)

    def as_in_base(name: str, tensor: torch.Tensor) -> torch.Tensor:
        own = in_base.get(name)
        if own is not None and own.shape != tensor.shape:
            raise UnverifiedModelError(
                f"{base}: the trained tensor {name!r} of shape {tuple(tensor.shape)} is "
                f"{own.shape} in the base, so servers might not load it: "
                f"transformers {__version__} saves {type(model).__name__} in another form."
            )
        if own is None:  # a head that is stored once, under another name, for example
            logger.warning("the trained tensor %r has no counterpart in %s", name, base)
        dtype = _DTYPES.get(own.dtype, common) if own else common
        return (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()

    stored = by_base_names(model, weights, in_base)
    # taken out one by one, so that of what is cast one tensor at a time is there twice
    held = {name: as_in_base(name, stored.pop(name)) for name in [*stored]}
    model.save_pretrained(destination, state_dict=held, save_original_format=False)
    keep_only_weights(destination)
    copy_companions(base, destination)


def by_base_names(
    model: PreTrainedModel, weights: Mapping[str, torch.Tensor], in_base: Mapping[str, TensorEntry]
) -> dict[str, torch.Tensor]:
    """`weights` as the files have them: renamed, fused ones split.

    transformers splits in equal parts; where parts differ in the base, they are joined and split
    by its sizes. It adds a prefix that some old files lack, and keeps it.
    """
    prefix = f"{model.base_model_prefix}."
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in revert_weight_conversion(model, dict(weights)).items():
        short = name.removeprefix(prefix)
        stored[short if short in in_base and name not in in_base else name] = tensor
    for change in getattr(model, "_weight_conversions", None) or ():
        parts = change.source_patterns
        match getattr(change, "operations", None):
            case [Concatenate(dim=dim)]:
                for first in [name for name in stored if name.endswith(parts[0])]:
                    names = [first.removesuffix(parts[0]) + part for part in parts]
                    if in_base.keys() >= set(names) <= stored.keys():
                        sizes = [in_base[name].shape[dim] for name in names]
                        whole = torch.cat([stored[name] for name in names], dim)
                        stored |= zip(names, whole.split(sizes, dim), strict=True)
    return stored


def base_dtype(base: Path) -> torch.dtype:
    """The dtype that most parameters of `base` have; bfloat16 where it is not an ordinary float."""
    return _DTYPES.get(by_dtype(read_headers(base)).most_common(1)[0][0], torch.bfloat16)
