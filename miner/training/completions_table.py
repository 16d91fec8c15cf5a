"""A step's completions in the run's trackers: a table with TRL's columns, and traces."""

import importlib
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.reporting.token_records import StepTokens, TokenRecords, reward_of

MOST_ROWS = 64
MOST_TRACES = 8


class CompletionsTable(TrainerCallback):
    """Logs what was sampled to each tracker that has tables; the record of tokens is its source.

    Args:
        trackers: modules with `Table` and `log`: trackio, wandb.
        report: path of the run's report, which is logged beside them.
    """

    def __init__(self, records: TokenRecords, trackers: Sequence[str], report: Path) -> None:
        self._records = records
        self._trackers = [name for name in trackers if name in ("trackio", "wandb")]
        self._report = str(report.resolve())

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
        tokens = self._records.of(step)[0]
        table = importlib.import_module("pandas").DataFrame(completions(tokens))
        for name in self._trackers:
            tracker = importlib.import_module(name)
            logged = {"completions": tracker.Table(dataframe=table), "report": self._report}
            if played := episodes(tokens):
                logged["episodes"] = _as_traces(name, tracker, played)
            tracker.log(logged)


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
                "reward": reward_of(about["parts"]),
                "advantage": float(row.advantages.mean()),
                "task": about["task"],
            }
        )
    return lines[:MOST_ROWS]


def episodes(step: StepTokens) -> list[dict[str, Any]]:
    """Up to `MOST_TRACES` episodes: `messages`, sampled ones by the assistant, and `metadata`."""
    found = []
    for number, about in enumerate(step.episodes):
        rows = [row for row in step.rows if row.episode == number and row.weight is None]
        if about is None or not rows:
            continue
        messages = []
        for row in rows:
            sampled = [False] * row.prompt + (row.turns >= 0).tolist()
            parts = groupby(zip(sampled, row.ids.tolist(), strict=True), itemgetter(0))
            for own, some in parts:
                content = "".join(step.texts[token] for _, token in some)
                messages.append({"role": "assistant" if own else "user", "content": content})
        metadata = {"step": step.step, "task": about["task"], "reward": reward_of(about["parts"])}
        found.append({"messages": messages, "metadata": metadata})
    return found[:MOST_TRACES]


def _as_traces(name: str, tracker: Any, played: Sequence[dict[str, Any]]) -> Any:
    """Traces in a tracker's form; W&B's are one tree of a step."""
    if name == "trackio":
        return [tracker.Trace(**one) for one in played]
    trees = importlib.import_module("wandb.sdk.data_types.trace_tree")
    spans = []
    for one in played:
        results = [
            trees.Result(inputs={"user": asked["content"]}, outputs={"assistant": reply["content"]})
            for asked, reply in pairwise(one["messages"])
            if reply["role"] == "assistant"
        ]
        about = {"name": one["metadata"]["task"], "attributes": one["metadata"]}
        spans.append(trees.Span(span_kind=trees.SpanKind.LLM, results=results, **about))
    return trees.WBTraceTree(trees.Span(name="episodes", child_spans=spans))
