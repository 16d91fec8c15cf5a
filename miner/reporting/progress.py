"""Live progress: a bar in a terminal, fixed plain lines in a log.

Invariant: every plain line of training has the form
`step 12/300 reward 0.41 score 0.62 tokens/s 5,120 eta 0:41:10 learned 80/96 rows 9,100/30,000
tokens`, on one line (a value that is not known is "-"); reward and score are those of own episodes.
Where all legal moves are learned, `target KL 0.53` comes before `eta`, and instead of reward, score
and tokens/s where no episode was played.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from miner.evaluation.results import EpisodeRecord
from miner.reporting.records import TARGET_KL, StepRecord


def print_line(console: Console, text: str) -> None:
    """Print a line as it is: neither wrapped nor coloured, brackets and all."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Shown:
    """A bar if the console is a terminal, else plain lines; a context manager."""

    def __init__(
        self,
        label: str,
        total: int,
        console: Console | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        transient: bool = False,
    ) -> None:
        self._total = total
        self._console = console or Console()
        self._clock, self._started = clock, clock()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                console=self._console,
                transient=transient,
            )
            self._task = self._bar.add_task(label, total=total, text="")
            self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Print a line above the bar (an evaluation, a warning)."""
        print_line(self._console, text)
        self._console.file.flush()

    def _left(self, done: int, total: int) -> str:
        """Time left if what remains is as fast as what is done."""
        return duration((self._clock() - self._started) / done * (total - done))


def _ends_a_tenth(done: int, total: int) -> bool:
    return done * 10 // total > (done - 1) * 10 // total


class TrainingProgress(_Shown):
    """Shows training steps.

    Args:
        total: steps planned.
        console: console that is written to.
    """

    def __init__(self, total: int, *, console: Console | None = None) -> None:
        super().__init__("training", total, console)

    def update(self, record: StepRecord) -> None:
        """Show that a step is done."""
        left, kl = duration(record.eta_seconds), record.metrics.get(TARGET_KL)
        parts = [] if kl is None else [f"target KL {kl:.2f}"]
        if kl is None or record.episodes:
            rate = f"tokens/s {record.tokens_per_second:,.0f}"
            means = f"reward {_fixed(record.reward)} score {_fixed(record.score)}"
            parts = [f"{means} {rate}", *parts]
        if self._bar:
            text = "  ".join([*parts, f"{left} left"])
            self._bar.update(self._task, completed=record.step, text=text)
        else:
            shown = " ".join([*parts, f"eta {left} learned {record.work}"])
            self.note(f"step {record.step}/{self._total} {shown}")


class EvaluationProgress(_Shown):
    """Shows the episodes of an evaluation as they are decided. The first of those that are played
    at once give no estimate of the time left: they are the shortest, and the others are under way.

    Plain output is one line for each tenth of the list:
    `episodes 50/250 score 0.91 invalid replies 3 excluded 0 eta 0:00:12`.
    """

    def __init__(
        self,
        total: int,
        label: str,
        *,
        at_once: int = 1,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(label, total, console, clock)
        self._at_once = at_once
        self._done = 0
        self._invalid = 0
        self._scores: list[float] = []

    def update(self, record: EpisodeRecord) -> None:
        """Count one decided episode."""
        self._done += 1
        self._invalid += record.parse_failures + record.illegal_replies
        if record.score is not None:
            self._scores.append(record.score)
        mean = _fixed(sum(self._scores) / len(self._scores) if self._scores else None)
        excluded = self._done - len(self._scores)
        known = self._done >= self._at_once
        left = self._left(self._done, self._total) if known else duration(None)
        if self._bar:
            text = f"score [bold]{mean}[/]  invalid replies {self._invalid}  {left} left"
            self._bar.update(self._task, completed=self._done, text=text)
        elif _ends_a_tenth(self._done, self._total):
            self.note(
                f"episodes {self._done}/{self._total} score {mean} "
                f"invalid replies {self._invalid} excluded {excluded} eta {left}"
            )


class WarmStartProgress(_Shown):
    """Shows the making of a base model: a line for each tenth of the steps, or a bar that goes at
    the end, since nothing is made where one is cached."""

    def __init__(
        self,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("warm start", total, console, clock, transient=True)

    def update(self, step: int, total: int, loss: float) -> None:
        """Show that `step` of now planned `total` is done."""
        left = self._left(step, total)
        if self._bar:
            text = f"loss {loss:.2f}  {left} left"
            self._bar.update(self._task, completed=step, total=total, text=text)
        elif _ends_a_tenth(step, total):
            self.note(f"warm start {step}/{total} loss {loss:.2f} eta {left}")


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds; "-" for None."""
    return "-" if seconds is None else str(timedelta(seconds=max(0, round(seconds))))
