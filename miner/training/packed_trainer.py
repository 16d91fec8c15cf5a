"""TRL's GRPOTrainer with passes bounded by tokens instead of episodes.

A step of TRL's loop then takes all rows of a process, and they are cut into passes here. The
gradient is that of the whole batch in one pass, for each of the losses named in the settings; the
optimizer steps once. Scoring without gradient keeps to the same budget.

A pass gets its rows as wide as the batch: columns that are padding in all of them are for the
subclass's `_compute_loss` to remove.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import DistributedType

from miner.training.cpu_scoring import CpuScoringTrainer
from miner.training.packing import Length, exactly, fewest_passes, over_passes

MEAN_OVER_TOKENS = ("dapo", "bnpo")
"""Losses that divide by trained tokens; the others of the settings divide by rows."""


class PackedTrainer(CpuScoringTrainer):
    """GRPO in passes of different numbers of rows.

    Args:
        tokens_per_pass: tokens of a forward and backward pass at most, padding included; a single
            longer row is a pass of its own. None: TRL's fixed number of rows.
        agree: this process's number of passes -> the largest of all processes. Every pass is a
            collective operation, so all of them must run as many.
    """

    def __init__(
        self,
        *args: Any,
        tokens_per_pass: int | None = None,
        agree: Callable[[int], int] = lambda passes: passes,
        **kwargs: Any,
    ) -> None:
        self._tokens_per_pass = tokens_per_pass
        self._agree = agree
        super().__init__(*args, **kwargs)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The batch's loss, whose gradient is the last pass's: the others are added already.

        Only the caller's backward of the last pass ends in an optimizer step.
        """
        if self._tokens_per_pass is None or not model.training:
            whole: torch.Tensor = super().compute_loss(
                model, inputs, return_outputs, num_items_in_batch
            )
            return whole
        recorded = {name: len(values) for name, values in self._metrics["train"].items()}
        *early, last = self._cut(inputs)
        done: torch.Tensor | float = 0.0
        for share, rows in early:
            with self._gradients_kept(model):
                with self._any_rows_gathered():
                    loss = share * super().compute_loss(model, rows)
                self.accelerator.backward(loss)
            done = done + loss.detach()
        share, rows = last
        with self._any_rows_gathered():
            loss = share * super().compute_loss(model, rows) + done
        self._join_metrics(recorded, [trained_tokens(rows) for _, rows in (*early, last)])
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """TRL names a batch size only when it scores without gradient: then passes replace it."""
        parent = super()._get_per_token_logps_and_entropies
        if self._tokens_per_pass is None or batch_size is None:
            return parent(model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs)
        first = input_ids.shape[1] - logits_to_keep
        prompt_mask, completion_mask = attention_mask[:, :first], attention_mask[:, first:]
        logprobs = torch.zeros(completion_mask.shape, device=input_ids.device)
        for rows in self._passes(prompt_mask, completion_mask):
            before = int(prompt_mask[rows].sum(1).max())
            after = int(completion_mask[rows].sum(1).max())
            columns = slice(first - before, first + after)
            found, _, _ = parent(
                model, input_ids[rows, columns], attention_mask[rows, columns], after, **kwargs
            )
            logprobs[rows, :after] = found.float()
        return logprobs, None, None

    def _passes(self, prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> list[list[int]]:
        """Numbers of the rows of each pass, as many passes as all processes have agreed on."""
        assert self._tokens_per_pass is not None
        lengths: list[Length] = list(
            zip(prompt_mask.sum(1).tolist(), completion_mask.sum(1).tolist(), strict=True)
        )
        passes = fewest_passes(lengths, self._tokens_per_pass)
        return exactly(self._agree(len(passes)), passes, lengths)

    def _cut(self, inputs: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        """The inputs of each pass, with its share of the batch's loss.

        A pass's own loss divides by what is in the pass; the share makes the sum of all passes
        divide by what is in the batch.
        """
        passes = self._passes(inputs["prompt_mask"], inputs["completion_mask"])
        parts = [rows_of(inputs, rows) for rows in passes]
        sizes = [len(rows) for rows in passes]
        if self.loss_type in MEAN_OVER_TOKENS:
            sizes = [int(trained_tokens(part)) for part in parts]
        shares = [size / max(1, sum(sizes)) for size in sizes]
        for share, part in zip(shares, parts, strict=True):
            part["num_items_in_batch"] = inputs["num_items_in_batch"] * share
        return list(zip(shares, parts, strict=True))

    @contextmanager
    def _gradients_kept(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside, backward only accumulates, and no optimizer step follows.

        DDP is told by `no_sync` to exchange nothing; ZeRO exchanges in each pass. DeepSpeed steps
        inside accelerate's backward unless gradients are said to be incomplete; it divides by no
        number of passes, as its accumulation is 1.
        """
        state = self.accelerator.gradient_state
        before = state.sync_gradients
        state._set_sync_gradients(False)
        try:
            if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
                yield
            else:
                with self.accelerator.no_sync(model):
                    yield
        finally:
            state._set_sync_gradients(before)

    @contextmanager
    def _any_rows_gathered(self) -> Iterator[None]:
        """Inside, the processes' tensors may differ in rows: NaN fills them up where they gather.

        TRL gathers one value per row for the extremes of its clip ratios, which leave NaN out, and
        gather hangs or mixes values up where lengths differ.
        """
        gather = self.accelerator.gather

        def gather_filled(tensor: torch.Tensor) -> Any:
            return gather(self.accelerator.pad_across_processes(tensor, pad_index=math.nan))

        self.accelerator.gather = gather_filled
        try:
            yield
        finally:
            self.accelerator.gather = gather

    def _join_metrics(self, recorded: dict[str, int], tokens: list[torch.Tensor]) -> None:
        """Make one value of what each pass has added to a metric since `recorded`."""
        over_processes = self.accelerator.reduce(torch.stack(tokens), reduction="sum").tolist()
        for name, values in self._metrics["train"].items():
            first = recorded.get(name, 0)
            if len(values) - first == len(tokens):
                values[first:] = [over_passes(name, values[first:], over_processes)]


def trained_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """How many tokens of a batch carry loss, as a float of shape ()."""
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).sum().float()


def rows_of(inputs: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    """These rows of a batch; values that are no tensor of rows stay as they are."""
    return {
        name: value[rows] if isinstance(value, torch.Tensor) and value.dim() else value
        for name, value in inputs.items()
    }
