"""Log-probabilities of sampled tokens on a CPU, without the work that only padding makes.

TRL pads prompts on the left and completions on the right, which takes a mask of (tokens x tokens)
per row, and attention's slow path with it. Moved to the left edge, rows are padded on the right
only, where causal attention does not look: no mask, and the fast path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from peft import PeftModel
from torch.nn.parallel import DistributedDataParallel
from trl import GRPOTrainer

from miner.inference.transformers.last_layer import last_feed_forward_at

T = TypeVar("T")


class CpuScoringTrainer(GRPOTrainer):
    """TRL's trainer, which on a CPU scores only the tokens with loss, by `score_tokens`.

    In an episode they are one in ten or twenty. The parent's head leaves masked positions out where
    Triton runs, and scores them all elsewhere.
    """

    _loss_mask: torch.Tensor | None = None

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        self._loss_mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            return loss
        finally:
            self._loss_mask = None

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """DeepSpeed has to see the parent's way, through each module's own forward."""
        if input_ids.device.type != "cpu" or self.is_deepspeed_enabled:
            theirs: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] = (
                super()._get_per_token_logps_and_entropies(
                    model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
                )
            )
            return theirs
        whole: Any = self.accelerator.unwrap_model(model)
        whole = whole.get_base_model() if isinstance(whole, PeftModel) else whole
        wanted = self._loss_mask
        if wanted is None:  # TRL scores without gradient, and has not said what has loss
            wanted = attention_mask[:, -logits_to_keep:].bool()
        chunks = (
            part.split(batch_size or len(input_ids)) for part in (input_ids, attention_mask, wanted)
        )
        with self.accelerator.autocast():  # as in the model's own forward, which samples
            scores = [
                in_forward_of(model, score_tokens, whole, ids, attended, scored, self.temperature)
                for ids, attended, scored in zip(*chunks, strict=True)
            ]
        logprobs, entropies = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return logprobs, entropies, None


def in_forward_of(model: torch.nn.Module, work: Callable[..., T], *args: Any) -> T:
    """`work(*args)`, from within the forward of a model that several processes share.

    There DDP prepares the exchange of gradients. A model that is not wrapped needs no such thing.
    """
    if not isinstance(model, DistributedDataParallel):
        return work(*args)
    inner = model.module
    own = vars(inner).get("forward")  # accelerate may have put one on the instance
    inner.forward = work
    try:
        result: T = model(*args)
        return result
    finally:
        if own is None:
            del inner.forward
        else:
            inner.forward = own


def score_tokens(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    wanted: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies where `wanted` is set, 0 elsewhere.

    Args:
        model: a transformers model with a `base_model` and an output head.
        input_ids: prompts and completions, shape (batch, tokens).
        attention_mask: 1 on one stretch of tokens in each row, 0 on the padding around it.
        wanted: which of the last tokens to score, shape (batch, completion tokens).

    Returns: two tensors of `wanted`'s shape, in float32, in nats.
    """
    starts = attention_mask.argmax(1)
    width = int(attention_mask.sum(1).max())
    columns = torch.arange(width) + starts[:, None]
    moved = input_ids.gather(1, columns.clamp(max=input_ids.shape[1] - 1))
    row, column = wanted.nonzero(as_tuple=True)
    column = column + input_ids.shape[1] - wanted.shape[1]
    before = column - starts[row] - 1
    with last_feed_forward_at(model, row, before):
        hidden = model.base_model(input_ids=moved, use_cache=False).last_hidden_state
    scores = (model.get_output_embeddings()(hidden[row, before]).float() / temperature).log_softmax(
        -1
    )
    chosen = scores.gather(-1, input_ids[row, column].unsqueeze(-1)).squeeze(-1)
    entropies = -(scores.exp() * scores).sum(-1)
    nowhere = hidden.new_zeros(wanted.shape, dtype=torch.float32)
    return nowhere.masked_scatter(wanted, chosen), nowhere.masked_scatter(wanted, entropies)
