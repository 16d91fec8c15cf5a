"""Held-out evaluation during training, and publishing by its result.

Invariants: the base model is at the output path before the first step; what replaces it was
better on the same held-out games; the decision's state survives a kill (`best.json` is written
only after the model it speaks of was published).
"""

import json
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.contract import game_title
from miner.config.errors import ConfigurationError
from miner.config.run_files import BEST_FILE, PUBLICATION_FILE, write_atomically
from miner.distributed.ranks import Ranks
from miner.environments import InfrastructureError
from miner.evaluation.results import EvaluationResult, Failure, deal_of
from miner.evaluation.statistics import Estimate, paired_difference
from miner.learning.schedule import SAFETY, Schedule
from miner.publishing.best import BestModel, Evaluated
from miner.publishing.gate import GateRule, look_error
from miner.publishing.publisher import PublishedScore
from miner.reporting.records import CHECKPOINT, EvaluationRecord, Replay
from miner.reporting.run_folder import RunFolder

CANDIDATES = ("candidates", "last_candidates")
"""Keys in `best.json`: how many the gate has been asked about, during training and at its end."""
DETOUR = "evaluation_seconds"
"""Key of how long the last evaluation took, its publication included."""
EXPECTED = "expected_seconds"
"""Key of how long the next one is expected to take by itself."""
ENGINE = "engine"
"""Key of what played it: another one takes another time, as the plan has it."""

_FUTILE: dict[Failure, str] = {
    "too_long": "raise rollout.max_episode_tokens or lower evaluation.max_reply_tokens",
    "too_slow": "raise rollout.episode_seconds",
}
"""Failures of the base's episodes that come again, and what to do about each."""

NO_TIME: Failure = "no_time"

FIRST_BY = 4
"""Part of the time left after which the first candidate is evaluated at the latest."""

Evaluate = Callable[[], EvaluationResult]
"""Plays the held-out episodes greedily with the current weights; the same result on every rank."""

Publish = Callable[[PublishedScore, bool], str]
"""Publishes the current weights; every rank takes part. Where they are the last ones, a failure is
raised; else the reason comes back, empty where they were published."""


class HeldOut(TrainerCallback):
    """Evaluates every `every_steps`, publishes, and evaluates the last weights.

    An evaluation that would take more than `time_share` of the time since the one before is left
    out, as is one for which less than half of that time is left before the last one. The first one
    comes once a quarter of the time that is left has gone by, if that is sooner: a base whose
    replies never end takes longer than what has learned to answer.

    Args:
        run_dir: holds `evaluations.jsonl` and `best.json`.
        schedule: learns how long this takes, and decides whether there is time for it.
        note: shows a line to the user.
        gate: publish only what it has nothing against; None: any better one.
        replays: makes replays of some episodes; the base's and the latest evaluation's are kept.
        whole: seconds planned for an evaluation of which no game is forfeited.
        engine: that plays.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        publish: Publish,
        run_dir: Path,
        schedule: Schedule,
        *,
        ranks: Ranks,
        every_steps: int,
        time_share: float = 1.0,
        note: Callable[[str], None],
        gate: GateRule | None = None,
        replays: Callable[[EvaluationResult], Sequence[Replay]] = lambda result: (),
        whole: float = 0.0,
        engine: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evaluate = evaluate
        self._publish = publish
        self._ranks = ranks
        self._run = RunFolder(run_dir)
        self._state_file = run_dir / BEST_FILE
        self._schedule = schedule
        self._every = every_steps
        self._time_share = time_share
        self._clock = clock
        self._last, self._detour = clock(), 0.0  # its end, and how long it took
        self._note = note
        self._replays = replays
        self._gate = gate
        self._whole, self._engine = whole, engine
        self._candidates = dict.fromkeys(CANDIDATES, 0)
        self._undecided: list[str] = []
        self._latest: EvaluationResult | None = None
        self._best = self._restore()
        self._last_step = 0
        self._better = False
        self._lead: Estimate | None = None

    @property
    def best(self) -> Evaluated | None:
        """Scores of the model that is published now, None before `start`."""
        return self._best.best if self._best else None

    @property
    def highest(self) -> Evaluated:
        """Scores of the model that had the highest of those that were published."""
        return self._model.highest

    def rose(self, step: int) -> bool:
        """Return whether this process has just published the weights of `step`, and none before had
        a higher score."""
        return self._better and step == self._last_step == self.highest.step

    def fall(self, step: int) -> Estimate | None:
        """Difference of `step` to the highest score, if it is below that by more than chance.

        None where they were not evaluated, or the paired 95% interval, twice as wide, reaches up to
        0: the highest of many scores is so by luck. At a plateau of 26 candidates that differ by
        chance alone, the interval as it is finds a fall a run, one of twice its width none in 500.
        Likelihoods keep that of wins and losses, which is far wider: theirs would take the noise of
        single updates for a fall.
        """
        lead = self._lead if step == self._last_step else None
        fell = lead is not None and 2 * lead.high < lead.mean
        return lead if fell else None

    def lengthen(self, seconds: float) -> None:
        """Count `seconds` as part of the last evaluation, which they followed from. A restart
        forgets them."""
        self._last, self._detour = self._clock(), self._detour + seconds

    def start(self) -> None:
        """Evaluate the base model, unless an earlier process of this run did.

        Raises: `InfrastructureError` if most episodes were lost: nothing could be compared with it;
            `ConfigurationError` if most were too long or too slow, as they will be again.
        """
        if self._best is None:
            began = self._clock()
            result = self._measured()
            base = _evaluated(0, result)
            lost = [episode for episode in result.episodes if episode.score is None]
            if 2 * len(lost) > len(base.scores):
                message = (
                    f"{len(lost)} of the base model's {len(base.scores)} held-out episodes were "
                    f"lost (the first: {lost[0].message}): "
                )
                for failure, advice in _FUTILE.items():
                    if 2 * sum(each.failure == failure for each in lost) > len(lost):
                        raise ConfigurationError(f"{message}{advice}")
                raise InfrastructureError(
                    f"{message}check the environment servers and rollout.episode_seconds"
                )
            self._best = BestModel(base)
            self._record(result, 0, published=True)
            self._ended(began)

    def consider(self, step: int, *, last: bool = False) -> None:
        """Evaluate the current weights and publish them by the rule of `BestModel`.

        Args:
            last: training is over. If the gate was undecided on these weights as one of many
                candidates, it is asked again with the same games, as about the last ones, which
                have a separate error.
        """
        again = step == self._last_step
        if self._best is None or (again and not (last and self._undecided)):
            return
        began = self._clock() - (self._detour if again else 0.0)
        self._last_step, self._undecided = step, []
        result = self._latest if again and self._latest else self._measured()
        self._latest = result
        candidate = _evaluated(step, result)
        better = self._best.replaced_by(candidate, _deals(result))
        passed = better and self._passes(candidate, result, last)
        self._lead = _difference(candidate, self._best.highest, result)
        failure = self._publication_failure(candidate, last) if passed else ""
        self._better = passed and not failure
        if self._better:
            self._best.accept(candidate)
            self._store()
        self._record(
            result,
            step,
            published=self._better,
            difference=_difference(
                candidate, self._best.base, result, likelihoods=result.likelihoods
            ),
            withheld=failure or _undecided_in(self._undecided),
        )
        self._ended(began)

    @property
    def warning(self) -> str:
        """For the run's last lines, where no candidate has passed the gate; else empty."""
        return "no candidate has passed: the start stays" * (
            self._gate is not None and not self._model.best.step
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = state.global_step
        due = step % self._every == 0 and step < state.max_steps  # the last weights: at the end
        if due and self._ranks.broadcast(self._in_time()):
            self.consider(step)

    def _publication_failure(self, candidate: Evaluated, last: bool) -> str:
        """Publish the current weights; "" or the failure. A disk that refuses them costs no
        training: the model before stays, and the next candidate may be written."""
        played = sum(score is not None for score in candidate.scores)
        score = PublishedScore(candidate.step, candidate.mean, played)
        with self._schedule.measured("publication"):
            return self._publish(score, last)

    def _measured(self) -> EvaluationResult:
        with self._schedule.measured("evaluation"):
            result = self._evaluate()
        lost = result.failures().get("invalid_replies", 0) / max(1, len(result.episodes))
        if SAFETY * lost * self._whole < self._schedule.training_left():  # else no step is learned
            self._schedule.lengthen("evaluation", lost * self._whole)
        return result

    def _in_time(self) -> bool:
        apart = self._detour * (1 / self._time_share - 1)
        if not self._last_step:  # no candidate yet
            apart = min(apart, max(self._detour, self._schedule.training_left() / FIRST_BY))
        since = self._clock() - self._last
        return since >= apart and self._schedule.room_for_evaluation(apart / 2)

    def _ended(self, began: float) -> None:
        self._last = self._clock()
        self._detour = self._last - began
        self._store()

    def _passes(self, candidate: Evaluated, result: EvaluationResult, last: bool) -> bool:
        """Return whether the gate lets the candidate pass, if there is one. Each has to show more
        than those before."""
        if self._gate is not None:
            asked = CANDIDATES[last]
            self._candidates[asked] += 1
            self._store()  # a run that is killed now must not ask again with the same number
            games = [episode.environment for episode in result.episodes]
            error = look_error(self._candidates[asked], last=last)
            self._undecided = self._gate(games, candidate, self._model.base, error)
        return not self._undecided

    @property
    def _model(self) -> BestModel:
        if self._best is None:
            raise RuntimeError("nothing was evaluated yet: call start first")
        return self._best

    def _record(
        self,
        result: EvaluationResult,
        step: int,
        *,
        published: bool,
        difference: Estimate | None = None,
        withheld: str = "",
    ) -> None:
        if not self._ranks.leads:
            return
        record = EvaluationRecord.of(
            result,
            split="held_out",
            time=time.time(),
            name="base" if step == 0 else CHECKPOINT,
            step=step,
        )
        found = {"published": published, "difference": difference, "withheld": withheld}
        record = record.model_copy(update=found)
        self._run.evaluations.append(record)
        name = "held-out" if step else "base"
        for number, replay in enumerate(self._replays(result), start=1):
            named = replay.model_copy(update={"policy": record.name})
            self._run.add_replay(f"{name}-{number}", named)
        for failure in (*_FUTILE, NO_TIME):
            if lost := result.failures().get(failure, 0):
                self._note(f"{lost} held-out games not counted: {result.first_message(failure)}")
        fate = "published" if published else "kept the published one"
        reason = f": {withheld}" if withheld else ""
        self._note(f"step {step}: held-out score {record.score}, {fate}{reason}")

    def _restore(self) -> BestModel | None:
        with suppress(OSError, ValueError):
            seconds = float(self._state_file.with_name(PUBLICATION_FILE).read_text())
            self._schedule.observe("publication", seconds)
        try:
            state = json.loads(self._state_file.read_text())
        except FileNotFoundError:
            return None
        self._candidates = {asked: state.get(asked, 0) for asked in CANDIDATES}
        if detour := state.get(DETOUR, 0.0):
            self._detour = detour
            expected = state.get(EXPECTED, detour)
            if self._whole and state.get(ENGINE) != self._engine:
                self._detour = expected = self._whole
            self._schedule.observe("evaluation", expected)
        return BestModel.from_state(state)

    def _store(self) -> None:
        assert self._best is not None
        if self._ranks.leads:
            seconds = {
                DETOUR: self._detour,
                EXPECTED: self._schedule.expected("evaluation") / SAFETY,
            }
            state = self._best.state() | self._candidates | seconds | {ENGINE: self._engine}
            write_atomically(self._state_file, json.dumps(state))


def _difference(
    first: Evaluated, second: Evaluated, result: EvaluationResult, *, likelihoods: bool = False
) -> Estimate | None:
    """On the episodes of `result` that both played; None for fewer than half, too few to judge."""
    played = [
        {number: score for number, score in enumerate(model.scores) if score is not None}
        for model in (first, second)
    ]
    shared = len(played[0].keys() & played[1].keys())
    if not shared or 2 * shared < len(first.scores):
        return None
    deal = _deals(result).__getitem__
    return paired_difference(played[0], played[1], deal, likelihoods=likelihoods)


def _deals(result: EvaluationResult) -> list[Hashable]:
    return [deal_of(episode.key) for episode in result.episodes]


def _undecided_in(games: Sequence[str]) -> str:
    """Reason to publish nothing; "" if the gate is undecided in none."""
    names = ", ".join(game_title(name) for name in games)
    return f"the gate was undecided in {names}" if games else ""


def _evaluated(step: int, result: EvaluationResult) -> Evaluated:
    episodes = result.episodes
    return Evaluated(
        step,
        tuple(episode.score for episode in episodes),
        tuple(episode.failure == "invalid_replies" for episode in episodes),
    )
