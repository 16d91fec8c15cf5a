"""A key-value cache of slots, so that one forward serves rows of any length at any point.

Invariants:
* position p of a slot holds the keys and values of the p-th id of the row that owns the slot, or
  garbage that no query may see: a query at position p attends exactly to positions 0..p;
* padding writes to one extra position past the end, which is never read;
* buffers grow on demand and are zeroed at birth, so masked garbage is always finite.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from miner.common_prefix import Ints, common_prefix, longest_prefix

LENGTH_STEP = 64

LEAST_SHARED = 16
"""Fewest tokens whose states are copied from another slot."""

NOTHING: Ints = np.empty(0, dtype=np.int64)


class SlotCache(Cache):
    """Keys and values per layer as `[slots, length + 1, kv_heads, head_dim]`.

    `aim` sets where the next forward's rows live; each layer's `update` then scatters the new
    states and returns the whole past of these rows as `[rows, kv_heads, kv_length, head_dim]`.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._slots = 0
        self._length = 0
        self._rows: slice | Tensor = slice(0, 0)
        self._write_index = torch.empty(0, dtype=torch.long)
        self._kv_length = 0

    def aim(self, slots: Sequence[int], positions: Tensor, kv_length: int) -> None:
        """Prepare for one forward.

        Args:
            slots: slot of each row, ascending and distinct.
            positions: `[rows, new_tokens]` position of each new token; negative for padding.
            kv_length: number of leading positions that the rows' queries may see.
        """
        self._slots = max(self._slots, slots[-1] + 1)
        if kv_length > self._length:
            self._length = -(-max(kv_length, self._length * 3 // 2) // LENGTH_STEP) * LENGTH_STEP
        stride = self._length + 1
        index = torch.tensor(slots, device=positions.device)
        write = torch.where(positions < 0, self._length, positions)
        self._write_index = (write + index[:, None] * stride).flatten()
        dense = slots[-1] - slots[0] + 1 == len(slots)
        self._rows = slice(slots[0], slots[-1] + 1) if dense else index
        self._kv_length = kv_length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        self._slots = max(self._slots, target + 1)
        for layer, buffers in enumerate(self._buffers):
            keys, values = (self._fitted(buffer) for buffer in buffers)
            for buffer in (keys, values):
                buffer[target, :length] = buffer[source, :length]
            self._buffers[layer] = keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **_: object
    ) -> tuple[Tensor, Tensor]:
        """Store `[rows, kv_heads, new_tokens, head_dim]` states; return the rows' whole past."""
        if layer_idx == len(self._buffers):
            self._buffers.append((_empty_like(key_states), _empty_like(value_states)))
        keys, values = (self._fitted(buffer) for buffer in self._buffers[layer_idx])
        self._buffers[layer_idx] = keys, values
        return self._exchange(keys, key_states), self._exchange(values, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: rows differ in length, so positions are always passed to the model explicitly."""
        return 0

    def _fitted(self, buffer: Tensor) -> Tensor:
        """`buffer`, or a larger copy of it where more slots or positions are needed by now."""
        slots, stride = buffer.shape[:2]
        if slots >= self._slots and stride == self._length + 1:
            return buffer
        larger = buffer.new_zeros((max(slots, self._slots), self._length + 1, *buffer.shape[2:]))
        larger[:slots, : stride - 1] = buffer[:, : stride - 1]
        return larger

    def _exchange(self, buffer: Tensor, states: Tensor) -> Tensor:
        fresh = states.transpose(1, 2).flatten(0, 1)
        buffer.view(-1, *buffer.shape[2:]).index_copy_(0, self._write_index, fresh)
        seen = buffer[:, : self._kv_length]
        if isinstance(self._rows, slice):
            return seen[self._rows].transpose(1, 2)
        return seen.index_select(0, self._rows).transpose(1, 2)


def _empty_like(states: Tensor) -> Tensor:
    return states.new_zeros((0, 1, states.shape[1], states.shape[3]))


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot that one row uses.

    Attributes:
        donor: slot that holds the states of the row's first `cached` ids; they are to be copied
            from there, unless it is this slot.
    """

    slot: int
    cached: int
    donor: int


class SlotTable:
    """Owners of slots, and the contents of the free ones.

    Slots in use are leased; idle ones wait for their session. Slots without an owner keep what they
    hold until they are leased: first those that hold nothing, the lowest first, so that the slots
    of a forward lie side by side, then the least recently used one.
    """

    def __init__(self, slots: int) -> None:
        self._free = set(range(slots))
        self._idle: OrderedDict[int, int] = OrderedDict()
        self._held: dict[int, Ints] = {}
        """From the least recently used slot to the latest."""

    def lease(
        self, session: int | None, ids: Sequence[int], active: Iterable[tuple[int, Ints]] = ()
    ) -> Lease | None:
        """A slot for a row of `ids`: the session's own, a free one, the least recently used one.

        The longest beginning of `ids` is looked for in all slots. The last id is left uncached,
        since its forward gives the next logits.

        Args:
            active: leased slots and the ids whose states they hold.

        Returns: None when every slot is leased.
        """
        if session is not None and session in self._idle:
            slot = self._idle.pop(session)
        elif self._free:
            slot = self._next_free()
        elif self._idle:
            _, slot = self._idle.popitem(last=False)
        else:
            return None
        wanted = np.array(ids[:-1], dtype=np.int64)
        cached = common_prefix(self._held.pop(slot, NOTHING), wanted)
        others = chain(self._held.items(), active)
        found = longest_prefix(wanted, others, cached + LEAST_SHARED)
        donor, cached = found or (slot, cached)
        if donor in self._held:
            self._held[donor] = self._held.pop(donor)
        return Lease(slot, cached, donor)

    def give_back(self, slot: int, session: int | None, ids: Sequence[int]) -> None:
        """End a lease; `ids` are those whose states the slot holds, kept for `session` if any."""
        self._held[slot] = np.array(ids, dtype=np.int64)
        if session is None:
            self._free.add(slot)
        else:
            self.forget(session)  # it may have asked twice at once
            self._idle[session] = slot

    def forget(self, session: int) -> None:
        """Let others have the slot that is kept for `session`, if any."""
        if session in self._idle:
            self._free.add(self._idle.pop(session))

    def forget_all(self) -> None:
        """Free every idle slot; nothing is held any more."""
        for session in list(self._idle):
            self.forget(session)
        self._held.clear()

    def _next_free(self) -> int:
        """Take a free slot."""
        empty = self._free - self._held.keys()
        slot = min(empty) if empty else next(slot for slot in self._held if slot in self._free)
        self._free.remove(slot)
        return slot
