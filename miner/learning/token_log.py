"""From a learned step to its record of tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from miner.learning.forest import Row
from miner.learning.packing import Pass
from miner.reporting.token_records import RowTokens, StepTokens, TokenRecords

Learned = tuple[int, np.ndarray]
"""The number of the tree in which a row was learned, and the row's log-probabilities."""

_EMPTY = np.zeros(0, np.float32)


class TokenLog:
    """Makes the records of a run's steps.

    Args:
        decode: token ids, each alone, to their texts.
    """

    def __init__(self, records: TokenRecords, decode: Callable[[list[list[int]]], list[str]]):
        self._records = records
        self._decode = decode
        self._texts: dict[int, str] = {}

    def add(
        self,
        step: int,
        rules: dict[str, Any],
        played: Sequence[dict[str, Any]],
        rows: Sequence[tuple[Row, list[int]]],
        batch: dict[str, Any],
        learned: dict[int, Learned],
    ) -> None:
        """Record a step, unless none is kept.

        Args:
            rules: see `StepTokens`.
            played: the rollout's columns of each episode.
            rows: each with the offsets in its completion that TRL was given.
            batch: TRL's columns, whose `row` is the number of each line's row.
            learned: see `learned_lines`.
        """
        if not self._records.keep:
            return
        columns = _columns(batch)
        lines = {number: line for line, number in enumerate(batch["row"].tolist())}
        owners = [
            (episode, turns, weight)
            for episode, one in enumerate(played)
            for turns, weight in zip(
                one["turn_ids"], one.get("weights") or [None] * len(one["turn_ids"]), strict=True
            )
        ]
        kept = []
        for number, ((row, offsets), (episode, turns, weight)) in enumerate(
            zip(rows, owners, strict=True)
        ):
            line = lines[number]
            there = columns["mask"][line, : len(offsets)]
            tree, logprobs = learned.get(line, (-1, np.full(len(offsets), np.nan, np.float32)))

            def of_loss(values: np.ndarray, there: np.ndarray = there) -> np.ndarray:
                return values[: len(there)][there] if len(values) else _EMPTY

            kept.append(
                RowTokens(
                    episode=episode,
                    prompt=len(row.ids) - len(turns),
                    ids=row.ids.astype(np.int32),
                    turns=np.array(turns, np.int32),
                    at=of_loss(np.array(offsets, np.int32)),
                    sampled=of_loss(columns["sampled"][line]),
                    learned=of_loss(logprobs),
                    reference=of_loss(columns["reference"][line]) if rules["beta"] else _EMPTY,
                    advantages=of_loss(columns["advantages"][line]),
                    tree=tree,
                    weight=weight,
                )
            )
        episodes = [one.get("episode") for one in played]
        self._records.add(StepTokens(step, rules, episodes, kept, self._texts_of(kept)))

    def _texts_of(self, rows: Sequence[RowTokens]) -> dict[int, str]:
        there = np.zeros(1 + max(int(row.ids.max()) for row in rows), bool)
        for row in rows:  # by marks, as sorting millions takes seconds
            there[row.ids] = True
        ids = np.flatnonzero(there).tolist()
        new = [token for token in ids if token not in self._texts]
        if new:
            self._texts.update(zip(new, self._decode([[token] for token in new]), strict=True))
        return {token: self._texts[token] for token in ids}


def _columns(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    advantages = batch["advantages"]
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand(mask.shape)
    values = {"sampled": batch["sampling_per_token_logps"], "advantages": advantages}
    if "ref_per_token_logps" in batch:
        values["reference"] = batch["ref_per_token_logps"]
    return {"mask": mask.cpu().numpy()} | {n: v.float().cpu().numpy() for n, v in values.items()}


def learned_lines(
    passes: Sequence[tuple[Pass, Tensor]],
    lines: int,
    rank: int,
    gather: Callable[[Any], list[Any]],
) -> dict[int, Learned]:
    """Learned values of each of this process's lines, by whichever process; collective.

    Args:
        passes: trees that this process learned together, and their rows' log-probabilities; rows
            are numbered over all processes' lines.
        lines: of this process.
    """
    found: dict[int, Learned] = {}
    number = 0
    for trees, logprobs in passes:
        values = iter(logprobs.float().cpu().numpy())
        for tree in trees:
            found.update((line, (number, next(values))) for line in tree.rows)
            number += 1
    parts = gather((lines, number, found))
    first = sum(count for count, _, _ in parts[:rank])
    mine: dict[int, Learned] = {}
    before = 0
    for _, trees_there, there in parts:
        for line, (tree, logprobs) in there.items():
            if first <= line < first + lines:
                mine[line - first] = (before + tree, logprobs)
        before += trees_there
    return mine
