"""Live progress: a bar where a person watches, fixed plain lines where a log is kept.

Invariant: every plain line of training has the form
`step 12/300 reward 0.41 score 0.62 tokens/s 5,120 eta 0:41:10` (a value that is not known is "-").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from miner.evaluation.results import EpisodeRecord


class TrainingProgress:
    """Shows training steps; a context manager.

    Args:
        total: steps planned, None when only the clock ends the run.
        start: steps already done (a resumed run); they count for nothing in the time left.
        console: where to write; a bar if it is a terminal, else plain lines.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total: int | None,
        *,
        start: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._start = start
        self._console = console or Console()
        self._clock = clock
        self._started = clock()
        self._bar = _Bar(self._console, "training", total) if self._console.is_terminal else None

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Show that `step` is done.

        Args:
            metrics: "reward", "score" and "tokens_per_second"; optional "eta_seconds" replaces the
                estimate from the mean step time. Missing and None are shown as "-".
        """
        eta = metrics.get("eta_seconds")
        if eta is None:
            eta = self._time_left(step)
        reward, score = _fixed(metrics.get("reward")), _fixed(metrics.get("score"))
        rate, left = _count(metrics.get("tokens_per_second")), _duration(eta)
        if self._bar:
            self._bar.show(
                step, f"reward {reward}  score [bold]{score}[/]  {rate} tokens/s  {left} left"
            )
        else:
            total = "-" if self._total is None else self._total
            _plain(
                self._console,
                f"step {step}/{total} reward {reward} score {score} tokens/s {rate} eta {left}",
            )

    def note(self, text: str) -> None:
        """Print a line of its own above the bar (an evaluation, a warning)."""
        _plain(self._console, text)

    def close(self) -> None:
        """Stop the bar (idempotent)."""
        if self._bar:
            self._bar.stop()

    def _time_left(self, step: int) -> float | None:
        done = step - self._start
        if self._total is None or done <= 0:
            return None
        return (self._clock() - self._started) / done * max(0, self._total - step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EvaluationProgress:
    """Shows the episodes of an evaluation as they are decided; a context manager.

    Plain output is one line for each tenth of the list:
    `episodes 50/250 score 0.91 invalid replies 3 excluded 0 eta 0:00:12`.
    """

    def __init__(
        self,
        total: int,
        label: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._console = console or Console()
        self._clock = clock
        self._started = clock()
        self._done = 0
        self._invalid = 0
        self._scores: list[float] = []
        self._bar = _Bar(self._console, label, total) if self._console.is_terminal else None

    def update(self, record: EpisodeRecord) -> None:
        """Count one decided episode."""
        self._done += 1
        self._invalid += record.parse_failures + record.illegal_replies
        if record.score is not None:
            self._scores.append(record.score)
        mean = _fixed(sum(self._scores) / len(self._scores) if self._scores else None)
        excluded = self._done - len(self._scores)
        elapsed = self._clock() - self._started
        left = _duration(elapsed / self._done * (self._total - self._done))
        if self._bar:
            self._bar.show(
                self._done,
                f"score [bold]{mean}[/]  invalid replies {self._invalid}  {left} left",
            )
        elif self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            _plain(
                self._console,
                f"episodes {self._done}/{self._total} score {mean} "
                f"invalid replies {self._invalid} excluded {excluded} eta {left}",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()


class _Bar:
    """One rich progress bar with free text at its end."""

    def __init__(self, console: Console, label: str, total: int | None) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
        )
        self._task: TaskID = self._progress.add_task(label, total=total, text="")
        self._progress.start()

    def show(self, done: int, text: str) -> None:
        self._progress.update(self._task, completed=done, text=text)

    def stop(self) -> None:
        self._progress.stop()


def _plain(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.file.flush()


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else str(timedelta(seconds=max(0, round(seconds))))
