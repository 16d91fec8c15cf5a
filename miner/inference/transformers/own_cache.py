"""Next-token logits of ragged rows by the model's own cache, in one batch that rows join and leave.

For layers that keep a state of the whole past (linear attention, convolutions) or of a window, of
which no prefix can be shared and no slot rolled back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from miner.inference.transformers.forward import Row, run_whole


@dataclass(slots=True)
class _Batch:
    """Rows that decode together.

    Attributes:
        mask: `[rows, tokens]`, 0 for padding on the left.
        idle: true once none of its rows took part in a decode step.
    """

    rows: list[Row]
    cache: Any
    mask: Tensor
    idle: bool = False


class OwnCacheForward:
    """Rows that begin are run whole, left-padded; then each step runs one token of each.

    A row that a decode step leaves out is over, or begins again.
    """

    caches = False

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._batches: list[_Batch] = []

    def pending(self, row: Row) -> int:
        return 1 if self._decodes(row) else len(row.ids)

    def logits(self, rows: Sequence[Row]) -> Tensor:
        running = [row for row in rows if self._decodes(row)]
        began = [row for row in rows if row not in running]
        found: dict[int, Tensor] = {}
        for some, run in ((began, self._prefill), (running, self._decode)):
            if some:
                found |= {id(row): of for row, of in zip(some, run(some), strict=True)}
        return torch.stack([found[id(row)] for row in rows])

    def share(self, donor: int, row: Row, length: int) -> None:
        row.cached = 0

    def reset(self) -> None:
        self._batches = []

    def _decodes(self, row: Row) -> bool:
        return 0 < row.cached == len(row.ids) - 1 and any(row in b.rows for b in self._batches)

    def _prefill(self, rows: list[Row]) -> Tensor:
        output, mask = run_whole(self._model, rows, use_cache=True)
        self._batches.append(_Batch(rows, output.past_key_values, mask))
        for row in rows:
            row.cached = len(row.ids)
        return output.logits[:, -1].float()

    def _decode(self, rows: list[Row]) -> Tensor:
        """One token of each; `rows` are put into the batch's order, and back."""
        parts, waiting = [], []
        for batch in self._batches:
            chosen = [at for at, row in enumerate(batch.rows) if row in rows]
            if chosen:
                parts.append(_only(batch, chosen))
            elif not batch.idle:  # begun in this very step
                batch.idle = True
                waiting.append(batch)
        whole = _joined(parts)
        device = whole.mask.device
        whole.mask = torch.cat([whole.mask, torch.ones_like(whole.mask[:, :1])], dim=1)
        output = self._model(
            input_ids=torch.tensor([[row.ids[-1]] for row in whole.rows], device=device),
            attention_mask=whole.mask,
            position_ids=torch.tensor([[row.cached] for row in whole.rows], device=device),
            past_key_values=whole.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._batches = [whole, *waiting]
        for row in rows:
            row.cached = len(row.ids)
        order = {id(row): at for at, row in enumerate(whole.rows)}
        return output.logits[[order[id(row)] for row in rows], -1].float()


def _only(batch: _Batch, chosen: list[int]) -> _Batch:
    """The batch with these rows alone, without columns in which all of them are padding."""
    rows, mask = [batch.rows[at] for at in chosen], batch.mask
    if len(rows) < len(batch.rows):
        index = torch.tensor(chosen, device=mask.device)
        batch.cache.reorder_cache(index)
        mask = mask[index]
    longest = max(row.cached for row in rows)
    if mask.shape[1] > longest:
        mask = mask[:, -longest:]
        for layer in batch.cache.layers:
            _shorten(layer, longest)
    return _Batch(rows, batch.cache, mask)


def _shorten(layer: Any, length: int) -> None:
    if getattr(layer, "keys", None) is not None:
        layer.keys, layer.values = layer.keys[..., -length:, :], layer.values[..., -length:, :]
    if hasattr(layer, "cumulative_length"):  # of a window, which forgets the rest
        layer.cumulative_length = length


def _joined(parts: Sequence[_Batch]) -> _Batch:
    """One batch of the rows of all, with the padding of the longest."""
    first, *others = parts
    if not others:
        return first
    length = max(part.mask.shape[1] for part in parts)
    mask = torch.cat([pad(part.mask, (length - part.mask.shape[1], 0)) for part in parts])
    for layers in zip(*(part.cache.layers for part in parts), strict=True):
        _join_layer(layers)
    return _Batch([row for part in parts for row in part.rows], first.cache, mask)


def _join_layer(layers: Sequence[Any]) -> None:
    """Have the first of these layers of caches hold the states of all, one below the other."""
    first = layers[0]
    if getattr(first, "keys", None) is not None:
        for name in ("keys", "values"):
            states = [getattr(layer, name) for layer in layers]
            longest = max(state.shape[-2] for state in states)
            padded = [pad(state, (0, 0, longest - state.shape[-2], 0)) for state in states]
            setattr(first, name, torch.cat(padded))
    if hasattr(first, "cumulative_length"):
        first.cumulative_length = max(layer.cumulative_length for layer in layers)
    for name in ("conv_states", "recurrent_states"):
        held: Mapping[int, Tensor | None] = getattr(first, name, {})
        joined = {
            number: state
            if state is None
            else torch.cat([getattr(layer, name)[number] for layer in layers])
            for number, state in held.items()
        }
        if joined:
            setattr(first, name, joined)
