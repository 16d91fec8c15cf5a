"""A step's completions as a table in the run's trackers, with the columns of TRL's own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.reporting.token_records import StepTokens, TokenRecords

MOST_ROWS = 64


class CompletionsTable(TrainerCallback):
    """Logs what was sampled to each tracker that has tables; the record of tokens is its source.

    Args:
        trackers: modules with `Table` and `log`: trackio, wandb.
    """

    def __init__(self, records: TokenRecords, trackers: Sequence[str]) -> None:
        self._records = records
        self._trackers = [name for name in trackers if name in ("trackio", "wandb")]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        step = state.global_step
        recorded = self._records.keep and step in self._records.steps()
        if not state.is_world_process_zero or not recorded or "reward" not in (logs or {}):
            return
        lines = completions(self._records.of(step)[0])
        table = importlib.import_module("pandas").DataFrame(lines)
        for name in self._trackers:
            tracker = importlib.import_module(name)
            tracker.log({"completions": tracker.Table(dataframe=table)})


def completions(step: StepTokens) -> list[dict[str, Any]]:
    """A line for each sampled row, up to `MOST_ROWS`; its advantage is its tokens' mean."""
    lines = []
    for row in step.rows:
        about = step.episodes[row.episode]
        if row.weight is not None or about is None or not len(row.at):
            continue
        texts = [step.texts[token] for token in row.ids.tolist()]
        lines.append(
            {
                "step": step.step,
                "prompt": "".join(texts[: row.prompt]),
                "completion": "".join(texts[row.prompt :]),
                "reward": sum(score + penalty for _, score, penalty, _ in about["parts"]),
                "advantage": float(row.advantages.mean()),
                "task": about["task"],
            }
        )
    return lines[:MOST_ROWS]
