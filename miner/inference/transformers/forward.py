"""Next-token logits of ragged rows, with a slot cache or, for models it cannot serve, without.

Both ways give the same logits (the cache is checked against the plain way once, at the start), and
both compute the output head at each row's last position only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from miner.inference.transformers.grouped_attention import GROUPED
from miner.inference.transformers.last_layer import last_layer_at
from miner.inference.transformers.slot_cache import SlotCache


class Row(Protocol):
    """A row of a forward pass: `ids[:cached]` have their states in `slot`."""

    ids: list[int]
    slot: int
    cached: int


class Forward(Protocol):
    """Computes float32 next-token logits `[rows, vocabulary]` and advances `cached`.

    Attributes:
        caches: true if rows can share states.
    """

    caches: bool

    def pending(self, row: Row) -> int:
        """Number of ids of `row` that have to go through the model."""

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Logits after the last id of each row; `rows` ascend by slot."""

    def share(self, donor: int, row: Row, length: int) -> None:
        """Let `row` begin with the first `length` states of the slot `donor`."""

    def reset(self) -> None:
        """Drop all states, for example because the weights have changed."""


class PlainForward:
    """The whole sequence of each row, left-padded, no cache: always right, never fast."""

    caches = False

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def pending(self, row: Row) -> int:
        return len(row.ids)

    def logits(self, rows: Sequence[Row]) -> Tensor:
        output, _ = run_whole(self._model, rows, use_cache=False)
        return output.logits[:, -1].float()

    def share(self, donor: int, row: Row, length: int) -> None:
        pass

    def reset(self) -> None:
        pass


class CachedForward:
    """Only the ids of each row that its slot does not hold yet."""

    caches = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.cache = SlotCache()

    def pending(self, row: Row) -> int:
        return len(row.ids) - row.cached

    def logits(self, rows: Sequence[Row]) -> Tensor:
        device, dtype = self._model.device, self._model.dtype
        starts = [row.cached for row in rows]
        ids, positions = _left_padded([row.ids[row.cached :] for row in rows], starts)
        ids, positions = ids.to(device), positions.to(device)
        kv_length = max(len(row.ids) for row in rows)
        self.cache.aim([row.slot for row in rows], positions, kv_length)
        positions = positions.clamp(min=0)
        hidden = torch.arange(kv_length, device=device) > positions[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        every = torch.arange(len(rows), device=device)
        with last_layer_at(self._model, every, torch.full_like(every, ids.shape[1] - 1)):
            output = self._model(
                input_ids=ids,
                attention_mask=mask[:, None],
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        for row in rows:
            row.cached = len(row.ids)
        return output.logits[:, -1].float()

    def share(self, donor: int, row: Row, length: int) -> None:
        if donor != row.slot:
            self.cache.copy(donor, row.slot, length)
        row.cached = length

    def reset(self) -> None:
        self.cache = SlotCache()


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def cache_obstacle(model: PreTrainedModel) -> str | None:
    """Reason against a slot cache for `model` (None without one): by its config, then by trial."""
    return attention_obstacle(model) or trial_obstacle(model, CachedForward(model))


def trial_obstacle(model: PreTrainedModel, forward: Forward) -> str | None:
    """Reason against `forward` for `model`, by trial; None without one."""
    try:
        with evaluation_mode(model):
            difference = _trial(model, forward)
    except Exception as error:  # kernels' compilers raise what they like
        return f"a trial with the cache failed: {type(error).__name__}: {error}"
    finally:
        forward.reset()
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    if not difference <= tolerance:
        return f"a trial with the cache gave logits off by {difference:.2g} (relative)"
    return None


def attention_obstacle(model: PreTrainedModel, *, windows: bool = False) -> str | None:
    """Reason in its config why `model` takes no mask for each query (None without one).

    Args:
        windows: true where layers that attend within a window get a mask that has it.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    taken = {"full_attention", "sliding_attention"} if windows else {"full_attention"}
    if not kinds <= taken:
        return f"its layers are of the kinds {sorted(kinds)}, not only full attention"
    windowed = getattr(config, "use_sliding_window", True) and not windows
    if not hasattr(config, "layer_types") and windowed and getattr(config, "sliding_window", None):
        return f"it attends within a window of {config.sliding_window} tokens"
    if getattr(config, "index_topk", None):
        return f"its tokens attend to {config.index_topk} others that it chooses"
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ("sdpa", "eager", GROUPED, "tree", "tree_flex"):  # tree_attention.py
        return f"its attention implementation {attention!r} takes no mask per row"
    return None


class _TrialRow:
    def __init__(self, ids: list[int], slot: int) -> None:
        self.ids, self.slot, self.cached = ids, slot, 0


def _trial(model: PreTrainedModel, forward: Forward) -> float:
    """Largest difference to the plain way, relative, while ragged rows begin, go on and end."""
    plain, vocabulary = PlainForward(model), model.config.get_text_config().vocab_size
    texts = [[(7 * i + 3 * n + 1) % vocabulary for i in range(n)] for n in (12, 10, 11)]
    rows = [_TrialRow(ids[: 2 + slot], slot) for slot, ids in enumerate(texts)]
    differences = []
    steps = (((0, 1), 0), ((0, 1), 1), ((2,), 0), ((0, 1, 2), 1), ((1, 2), 1), ((0, 1), 3))
    for taking_part, more in steps:
        some = [rows[number] for number in taking_part]
        for row in some:
            row.ids = texts[row.slot][: len(row.ids) + more]
        expected = plain.logits(some)
        difference = (forward.logits(some) - expected).abs().max()
        differences.append(float(difference / expected.abs().max().clamp(min=1e-6)))
    return float(torch.tensor(differences).max())  # which keeps what is not a number


def run_whole(
    model: PreTrainedModel, rows: Sequence[Row], *, use_cache: bool
) -> tuple[Any, Tensor]:
    """The model's output for all ids of each row, left-padded, and the mask `[rows, longest]`."""
    ids, positions = _left_padded([row.ids for row in rows], [0] * len(rows))
    mask = (positions >= 0).long().to(model.device)
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=mask,
        position_ids=positions.clamp(min=0).to(model.device),
        use_cache=use_cache,
        logits_to_keep=1,
    )
    return output, mask


def _left_padded(new_ids: Sequence[list[int]], starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Ids `[rows, longest]` with padding 0 on the left, and their positions (negative: padding)."""
    longest = max(map(len, new_ids))
    ids = torch.tensor([[0] * (longest - len(new)) + new for new in new_ids])
    lengths = torch.tensor([len(new) for new in new_ids])
    offsets = torch.arange(longest) - (longest - lengths)[:, None]
    return ids, torch.where(offsets < 0, -1, offsets + torch.tensor(starts)[:, None])
