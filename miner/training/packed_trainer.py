"""TRL's GRPOTrainer over rows, as many as a step has, in passes bounded by tokens.

TRL's loop takes all rows of a process as one batch, of which a process may have more than another
and more than episodes; they are cut into passes here. The gradient is that of all rows in one pass:
the mean over the sampled tokens of the whole step, over all processes. The optimizer steps once.
Scoring without gradient keeps to the same budget.

A pass gets its rows as wide as the batch: columns that are padding in all of them are for the
subclass's `_compute_loss` to remove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import DistributedType

from miner.training.cpu_scoring import CpuScoringTrainer
from miner.training.packing import Length, exactly, fewest_passes, longest_first, over_passes


class PackedTrainer(CpuScoringTrainer):
    """GRPO in passes of different numbers of rows.

    Args:
        tokens_per_pass: tokens of a forward and backward pass at most, padding included; a single
            longer row is a pass of its own.
        agree: this process's number of passes -> the largest of all processes. Every pass is a
            collective operation, so all of them must run as many.
    """

    def __init__(
        self,
        *args: Any,
        tokens_per_pass: int,
        agree: Callable[[int], int] = lambda passes: passes,
        **kwargs: Any,
    ) -> None:
        self._tokens_per_pass = tokens_per_pass
        self._agree = agree
        super().__init__(*args, **kwargs)
        self._gather = self.accelerator.gather
        self.accelerator.gather = self._gather_rows

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The batch's loss, whose gradient is the last pass's: the others are added already.

        TRL's "dapo" divides by the trained tokens of all processes' batches, so that the losses of
        passes add up. Only the caller's backward of the last pass ends in an optimizer step.
        """
        if not model.training:
            whole: torch.Tensor = super().compute_loss(
                model, inputs, return_outputs, num_items_in_batch
            )
            return whole
        recorded = {name: len(values) for name, values in self._metrics["train"].items()}
        *early, last = passes = self._cut(inputs)
        tokens = [trained_tokens(rows) for rows in passes]
        trained = torch.stack(tokens).sum().clamp(min=1.0)
        done: torch.Tensor | float = 0.0
        for rows, count in zip(early, tokens, strict=False):
            with self._gradients_kept(model), self._bonus_of(count / trained):
                loss = super().compute_loss(model, rows)
                self.accelerator.backward(loss)
            done = done + loss.detach()
        with self._bonus_of(tokens[-1] / trained):
            loss = super().compute_loss(model, last) + done
        self._join_metrics(recorded, tokens)
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
        if batch_size is None:
            return parent(model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs)
        first = input_ids.shape[1] - logits_to_keep
        prompt_mask, completion_mask = attention_mask[:, :first], attention_mask[:, first:]
        logprobs = torch.zeros(completion_mask.shape, device=input_ids.device)
        for rows, _ in self._passes(prompt_mask, completion_mask):
            before = int(prompt_mask[rows].sum(1).max())
            after = int(completion_mask[rows].sum(1).max())
            columns = slice(first - before, first + after)
            found, _, _ = parent(
                model, input_ids[rows, columns], attention_mask[rows, columns], after, **kwargs
            )
            logprobs[rows, :after] = found.float()
        return logprobs, None, None

    def _passes(
        self, prompt_mask: torch.Tensor, completion_mask: torch.Tensor
    ) -> list[tuple[list[int], bool]]:
        """Rows of each pass and whether they count, as many passes as all processes have agreed on.

        A process that has nothing left goes along with its shortest row, which does not count.
        """
        lengths: list[Length] = list(
            zip(prompt_mask.sum(1).tolist(), completion_mask.sum(1).tolist(), strict=True)
        )
        passes = fewest_passes(lengths, self._tokens_per_pass)
        shortest = longest_first(lengths)[-1:]
        return [
            (rows or shortest, bool(rows))
            for rows in exactly(self._agree(len(passes)), passes, lengths)
        ]

    def _cut(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The inputs of each pass; rows that do not count have no trained token."""
        parts = []
        for rows, count in self._passes(inputs["prompt_mask"], inputs["completion_mask"]):
            part = rows_of(inputs, rows)
            part["tool_mask"] = part["tool_mask"] * int(count)
            parts.append(part)
        return parts

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
    def _bonus_of(self, share: torch.Tensor) -> Iterator[None]:
        """Inside, TRL's entropy bonus, a mean over the tokens of one pass, counts as `share`, so
        that those of all passes add up to the mean over all tokens.

        What TRL records of it is that of one pass only, and goes.
        """
        whole, self.entropy_coef = self.entropy_coef, self.entropy_coef * float(share)
        try:
            yield
        finally:
            self.entropy_coef = whole
            for name in ("entropy_coef", "policy_loss"):
                self._metrics["train"].pop(name, None)

    def _gather_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """accelerate's gather, for tensors of which a process may have more rows than another.

        TRL gathers one value per row for its metrics; with different lengths, gather hangs or
        mixes values up.
        """
        if not tensor.dim() or self.accelerator.num_processes == 1:
            gathered: torch.Tensor = self._gather(tensor)
            return gathered
        counts = self._gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        filled = tensor.new_zeros((max(counts), *tensor.shape[1:]))
        filled[: len(tensor)] = tensor
        parts = self._gather(filled).chunk(len(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _join_metrics(self, recorded: dict[str, int], tokens: list[torch.Tensor]) -> None:
        """Make one value of what each pass has added to a metric since `recorded`."""
        over_processes = self.accelerator.reduce(torch.stack(tokens), reduction="sum").tolist()
        for name, values in self._metrics["train"].items():
            first = recorded.get(name, 0)
            if len(values) - first == len(tokens):
                values[first:] = [over_passes(name, values[first:], over_processes)]


def trained_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """How many tokens of a batch carry loss, as a float of shape ()."""
    return (inputs["completion_mask"] * inputs["tool_mask"]).sum().float()


def rows_of(inputs: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    """These rows of a batch; values that are no tensor of rows stay as they are."""
    return {
        name: value[rows] if isinstance(value, torch.Tensor) and value.dim() else value
        for name, value in inputs.items()
    }
