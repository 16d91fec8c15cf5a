"""Records of a run: one JSON object per line, safe to append to and to cut off anywhere.

Invariants:
* a line is written by one append and ends in a newline; a writer that finds a torn last line
  (the process was killed) ends it first, so that only the torn record is lost;
* reading skips torn lines and counts them; a whole line that is not such a record is an error;
* not-a-number survives: it is written as a string, so every line is plain JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from miner.config.errors import ConfigurationError
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply, deal_of
from miner.evaluation.statistics import Estimate, paired_difference
from miner.rollout.stats import RolloutStats

HALVINGS = "halvings"
"""Metric: how often the learning rate was halved so far; not recorded before the first time."""

REGRET = "regret"
"""Metric: mean chance to win that a step's moves gave away, by the critic; where there is one."""

TARGET_KL = "target_kl"
"""Metric: mean Kullback-Leibler divergence, in nats, of the policy from the targets of credit over
all moves or of demonstrations, without mounted data beside these; 0: each legal reply is as likely
as its target has it."""


def target_distances(history: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    """Steps and their `TARGET_KL`, newest first, of those whose one is finite (TRL logs None
    otherwise), from what a trainer has logged."""
    for logged in reversed(history):
        if (distance := logged.get(TARGET_KL)) is not None:
            yield logged["step"], distance


ROWS, LEFT_OUT = "rows", "rows_left_out"
"""Metrics: rows with tokens to learn from, and those of them that were not computed, as nothing in
them is better or worse than its baseline."""

ROW_TOKENS, COMPUTED_TOKENS = "row_tokens", "computed_tokens"
"""Metrics: tokens that learning from each row of a step alone takes, from its first to the one that
its last with loss is predicted from, and those computed to learn from them, each once."""

LOGPROB_GAP = "sampling/sampling_logp_difference/mean"
"""Metric: mean |log p| difference of sampled tokens between the engine and the trainer."""

GAP_ALARM = 0.1
"""Above it the importance ratio of a typical token is off by more than a tenth."""

GAP_GROWTH, GAP_FLOOR = 10.0, 0.005
"""A gap that numerics leave stays as it is; one of weights that do not arrive grows by the step."""


def gap_is_wide(gap: float, first: float) -> bool:
    """Return whether a step's logprob gap wants an alarm, given that of the run's first step."""
    return gap > GAP_ALARM or gap > max(GAP_FLOOR, GAP_GROWTH * first)


class Record(BaseModel):
    """Base of all records: immutable; fields of newer versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class StepRecord(RolloutStats, Record):
    """One training step (`metrics.jsonl`): the statistics of its rollout, and what became of it.

    Attributes:
        time: Unix time at the end of the step.
        seconds: of the step, without evaluations and what is saved.
        tokens_per_second: tokens of whole episodes, prompts included, per second of the step.
        action_applied_rate: share of actions that the environment applied as asked.
        phases: seconds by what they were spent on since the record before: playing, weights,
            learning, evaluation, publication, saving, keeping (of the best weights).
        eta_seconds: estimated seconds to the end of training.
        metrics: all other values of a line (loss, kl, entropy, learning_rate, ...).
    """

    step: int = Field(ge=0)
    total_steps: int | None = None
    time: float
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    action_applied_rate: float | None = None
    phases: dict[str, float] = {}
    eta_seconds: float | None = None
    metrics: dict[str, float] = {}

    @property
    def learns(self) -> bool:
        """Return whether a row was computed to learn from, as far as that is known."""
        return not 0 < self.metrics.get(ROWS, 0) == self.metrics.get(LEFT_OUT)

    @property
    def work(self) -> str:
        """Rows learned from of all, and tokens computed for it of all of theirs; "-" if unknown."""
        if ROWS not in self.metrics:
            return "-"
        rows, left, tokens, computed = (
            round(self.metrics.get(name, 0))
            for name in (ROWS, LEFT_OUT, ROW_TOKENS, COMPUTED_TOKENS)
        )
        return f"{rows - left:,}/{rows:,} rows {computed:,}/{tokens:,} tokens"


Split = Literal["grader", "held_out"]

CHECKPOINT = "checkpoint"
"""Name of evaluations made along the way: they are points of the curve, not rows of the table."""


class EvaluationRecord(Record):
    """One evaluation (`evaluations.jsonl`).

    Attributes:
        name: policy: "base", "trained", "random", "match (bid = prize)", "checkpoint", ...
        step: training step of the weights; None for a baseline.
        split: the grader's own episodes or the held-out ones.
        temperature: 0 greedy, 1 sampled, None where the policy has none.
        score: None when every episode was excluded.
        difference: to the base model on the same episodes, as a paired mean and interval.
        without_luck: score without that of the draws, where it can be told apart.
        failures: episodes by kind of failure.
        faults: episodes lost by a reply, by the fault that the environment named.
        by_game: scores of each game, where several were played.
        by_opponent: of each game against each opponent, where several were met.
        opponents: all that were met.
        sizes: cards and boards of duels that were asked for, of those that their games have.
        published: true if these weights became the published model.
        withheld: reason why weights that are better did not, as far as it is recorded.
    """

    name: str
    step: int | None = None
    time: float = 0.0
    seconds: float = 0.0
    split: Split
    channel: str
    environment: str = "goofspiel"
    temperature: float | None = None
    score: Estimate | None
    difference: Estimate | None = None
    without_luck: Estimate | None = None
    by_deck_size: dict[int, Estimate] = {}
    by_seat: dict[int, Estimate] = {}
    replies: int = 0
    parse_failures: int = 0
    illegal_replies: int = 0
    failures: dict[str, int] = {}
    faults: dict[str, int] = {}
    by_game: dict[str, Estimate] = {}
    by_opponent: dict[str, dict[str, Estimate]] = {}
    opponents: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    published: bool = False
    withheld: str = ""

    @property
    def games(self) -> dict[str, Estimate]:
        """Scores by game, also of a single one; empty without a score."""
        return self.by_game or ({self.environment: self.score} if self.score else {})

    @classmethod
    def of(
        cls,
        result: EvaluationResult,
        *,
        split: Split,
        time: float,
        name: str | None = None,
        step: int | None = None,
        base: EvaluationResult | None = None,
    ) -> EvaluationRecord:
        """Summary of `result`; `name` defaults to the policy's.

        Args:
            base: the base model's result on (some of) the same episodes, to compare with.
        """
        shared = result.scores.keys() & base.scores.keys() if base else set()
        found = {name: getattr(result, name) for name in cls.model_fields if hasattr(result, name)}
        own = {
            "name": name or result.policy,
            "step": step,
            "time": time,
            "split": split,
            "difference": paired_difference(result.scores, base.scores, deal_of)
            if base and shared
            else None,
            "failures": result.failures(),
            "published": False,
        }
        return cls.model_validate(found | own)


class TrainedEpisode(Record):
    """One sampled episode of training (`episodes.jsonl`), which ended at Unix time `time`."""

    time: float
    episode: EpisodeRecord


class Move(Record):
    """One event: who acted, and its label by the server; or an environment's message."""

    by: Literal["agent", "opponent", "chance", "environment"]
    label: str
    replies: tuple[Reply, ...] = ()


class Replay(Record):
    """One game to look at (`replays/*.json`).

    Attributes:
        policy: name of the policy in the agent's seat.
        moves: every event in order, for any game.
        unanswered: the last replies of an episode that they ended without a legal action.
        scenes: positions before the first move of a game and after each, to be drawn.
    """

    environment: str
    task_id: int
    seed: int
    opponent: str = "random"
    seat: int | None = None
    deck_size: int | None = None
    channel: str = ""
    policy: str
    score: float | None
    failure: str | None = None
    moves: tuple[Move, ...] = ()
    unanswered: tuple[Reply, ...] = ()
    scenes: tuple[dict[str, Any], ...] = ()


R = TypeVar("R", bound=Record)


class RecordFile(Generic[R]):
    """A file of records of one type, one per line.

    Args:
        path: the file; it and its folder are made when something is appended.
        kind: the record type.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self._kind = kind

    def append(self, record: R) -> None:
        """Write one line. Raises: OSError of the disk."""
        line = record.model_dump_json().encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self) -> tuple[list[R], int]:
        """All records in order, and how many torn lines were skipped; nothing for no file.

        Raises: `ConfigurationError` naming file, line and field for JSON that is not such a record.
        """
        try:
            return self._parsed(self.path.read_bytes(), 1)
        except FileNotFoundError:
            return [], 0

    def _parsed(self, text: bytes, first: int) -> tuple[list[R], int]:
        """Records and torn lines of `text`, whose first line is number `first` of the file."""
        records: list[R] = []
        torn = 0
        for number, line in enumerate(text.splitlines(), start=first):
            if not line.strip():
                continue
            try:
                records.append(self._kind.model_validate_json(line))
            except ValidationError as error:
                if error.errors()[0]["type"] == "json_invalid":
                    torn += 1
                    continue
                raise ConfigurationError(
                    f"{self.path} line {number} is no {self._kind.__name__}: {explain(error)}"
                ) from None
        return records, torn


class RecordTail(RecordFile[R]):
    """A file of records that grows while it is read; each whole line is parsed once.

    A file that was cut or has another first line is read again from its start (a new file may have
    the number of a deleted one), of a very long one the end alone.

    Attributes:
        records: records read so far.
        torn: torn lines among it.
        cut: true if the file's beginning was left out.
    """

    MOST_BYTES = 100_000_000

    def __init__(self, path: Path, kind: type[R]) -> None:
        super().__init__(path, kind)
        self._restart()

    def _restart(self) -> None:
        self.records: list[R] = []
        self.torn = 0
        self.cut = False
        self._first, self._at, self._line = b"", 0, 1

    def refresh(self) -> bool:
        """Read what was added; returns whether anything has changed.

        Raises: `ConfigurationError` as `read`.
        """
        try:
            with self.path.open("rb") as file:
                size, first = os.fstat(file.fileno()).st_size, file.readline()
                if size < self._at or not first.startswith(self._first):
                    self._restart()
                self._first = first
                if size - self._at > self.MOST_BYTES:
                    self._at, self.cut = size - self.MOST_BYTES, True
                    file.seek(self._at)
                    self._at += len(file.readline())
                file.seek(self._at)
                text = file.read(self.MOST_BYTES)
        except FileNotFoundError:
            changed = bool(self._first)
            self._restart()
            return changed
        whole = text[: text.rfind(b"\n") + 1]
        records, torn = self._parsed(whole, self._line)
        self.records += records
        self.torn += torn
        self._at += len(whole)
        self._line += whole.count(b"\n")
        return bool(whole)


def latest_per_step(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Records in ascending order of steps. A process that continues from a checkpoint does the
    steps after it again: what an earlier one did there is no part of the run any more."""
    kept: list[StepRecord] = []
    for record in records:
        while kept and kept[-1].step >= record.step:
            kept.pop()
        kept.append(record)
    return kept


def explain(error: ValidationError) -> str:
    """The first problem of a validation in one line: field, value, expectation."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole value"
    return f"{where}: {first['msg']} (got {str(first.get('input'))[:80]!r})"
