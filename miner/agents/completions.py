"""Result of a client's `generate`: token ids, and what belongs to each completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from miner.inference.sampler import FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion. All tuples but `prompt_ids` have one entry per id.

    Attributes:
        prompt_ids: token ids of the prompt.
        ids: sampled ids, and between them what an environment wrote.
        logprobs: natural-log probability of each sampled id; 0.0 for the others.
        mask: 1 for sampled ids, 0 for the others.
        finish_reason: end of the last sample.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    finish_reason: FinishReason = "stop"

    def sampled(self, more: Completion) -> Completion:
        """With a sample that was drawn after it."""
        return Completion(
            self.prompt_ids,
            self.ids + more.ids,
            self.logprobs + more.logprobs,
            self.mask + more.mask,
            more.finish_reason,
        )

    def appended(self, ids: Sequence[int]) -> Completion:
        """With ids that were not sampled."""
        zeros = (0,) * len(ids)
        return Completion(
            self.prompt_ids,
            self.ids + tuple(ids),
            self.logprobs + tuple(map(float, zeros)),
            self.mask + zeros,
            self.finish_reason,
        )


class Completions(list[list[int]]):
    """The token ids as a plain list of lists, for code that asks for no more; see `Completion`."""

    def __init__(self, items: Sequence[Completion]) -> None:
        super().__init__(list(item.ids) for item in items)
        self.items = tuple(items)

    @property
    def prompt_ids(self) -> list[list[int]]:
        """Of each completion the ids it answers."""
        return [list(item.prompt_ids) for item in self.items]

    @property
    def logprobs(self) -> list[list[float]]:
        """Of each completion one for each id."""
        return [list(item.logprobs) for item in self.items]

    @property
    def masks(self) -> list[list[int]]:
        """Of each completion 1 for each id that the policy sampled."""
        return [list(item.mask) for item in self.items]
