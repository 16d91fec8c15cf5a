"""Mamba 2 layers as vLLM computes them, and in products of matrices.

Invariant: outputs, states and gradients are, up to rounding, those of transformers' own code with
the config's limits; time and memory differ.
"""

import inspect
import logging
import sys
from math import inf
from typing import Any

import torch
from torch.nn import functional

NAME = "mamba2_chunk_scan"
"""Name of transformers' function in the modules of all models with Mamba 2."""

logger = logging.getLogger(__name__)


def prepare_mamba(model: Any) -> None:
    """Set the config's limits of time steps and `chunk_scan` in a model's Mamba 2 layers, if any.

    transformers clamps a Nemotron's time steps to `time_step_min`, meant for initial weights; vLLM
    does not. The former's scan writes all products to memory before they are summed.
    """
    limit = getattr(model.config.get_text_config(), "time_step_limit", None)
    for layer in model.modules():
        if hasattr(layer, "time_step_limit") and limit is not None:
            layer.time_step_limit = tuple(limit)
        module: Any = sys.modules.get(type(layer).__module__)
        theirs = getattr(module, NAME, None)
        if theirs is None or theirs is chunk_scan:
            continue
        if [*inspect.signature(theirs).parameters] == [*inspect.signature(chunk_scan).parameters]:
            setattr(module, NAME, chunk_scan)
        else:
            logger.debug("%s.%s has other arguments: left as it is", module.__name__, NAME)


def chunk_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, inf),
    return_final_states: bool = False,
    **kwargs: Any,
) -> Any:
    """Selective scan of Mamba 2: within chunks as attention with decay, between them by states.

    Dao and Gu, "Transformers are SSMs" (ICML 2024), section 6. Computed in float32, as kernels do.

    Args:
        hidden_states: (batch, length, heads, width).
        dt: (batch, length, heads).
        A, D, dt_bias: (heads,).
        B, C: (batch, length, groups, size); a group serves as many heads as any other.
        initial_states: (batch, heads, width, size).

    Returns: the outputs, in the shape of `hidden_states`; with `return_final_states` the states
        after the last token, too.
    """
    length, groups = dt.shape[1], B.shape[2]
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = (functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit).float()

    def chunks(tensor: torch.Tensor) -> torch.Tensor:
        """(batch, chunks, groups, heads of a group, chunk_size, ...)"""
        padding = (0, 0) * (tensor.dim() - 2) + (0, -length % chunk_size)
        split = functional.pad(tensor, padding).unflatten(1, (-1, chunk_size)).transpose(2, 3)
        return split.unflatten(2, (groups, -1))

    x = hidden_states.float()
    with torch.autocast(x.device.type, enabled=False):  # else products would be in bfloat16
        inputs, decay = chunks(x * dt[..., None]), chunks(A.float() * dt).cumsum(-1)
        keys, queries = (chunks(tensor.float()).squeeze(3) for tensor in (B, C))
        later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=x.device).triu(1)
        weights = (decay[..., :, None] - decay[..., None, :]).masked_fill_(later, -inf).exp_()
        outputs = (weights * (queries @ keys.mT)[:, :, :, None]) @ inputs

        rest = (decay[..., -1:] - decay).exp()[..., None]
        added = torch.einsum("bcghlp,bcgln->bcghpn", inputs * rest, keys).unbind(1)
        kept = decay[..., -1, None, None].exp().unbind(1)
        first = torch.zeros_like(added[0]) if initial_states is None else initial_states.float()
        states = [first.view_as(added[0])]
        for share, new in zip(kept, added, strict=True):
            states.append(states[-1] * share + new)
        earlier = torch.einsum("bcgln,bcghpn->bcghlp", queries, torch.stack(states[:-1], 1))
        outputs = outputs + earlier * decay.exp()[..., None]
    scanned = outputs.flatten(2, 3).transpose(2, 3).contiguous().flatten(1, 2)[:, :length]
    scanned = scanned if D is None else scanned + D[..., None] * x
    return (scanned, states[-1].flatten(1, 2)) if return_final_states else scanned
