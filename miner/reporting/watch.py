"""A run as it is now, for `miner watch`: alarms first, then scores, rates, episodes and the plan.

Invariant: it reads the run's records and nothing else, and writes nothing.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean

from miner.config.contract import game_title
from miner.config.errors import ConfigurationError
from miner.config.run_files import EPISODES_FILE
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.games import RANDOM
from miner.reporting.charts import Chart, Point, binned
from miner.reporting.progress import duration
from miner.reporting.records import (
    LOGPROB_GAP,
    TARGET_KL,
    EvaluationRecord,
    Move,
    RecordTail,
    Replay,
    StepRecord,
    TrainedEpisode,
)
from miner.reporting.replay import replay_of, replay_with
from miner.reporting.replay_page import description, headline
from miner.reporting.run_folder import Run, RunFolder
from miner.reporting.run_warnings import alarms, notes
from miner.reporting.summary import (
    held_out_curve,
    scoring,
    steps_done,
    subject,
    token_rate,
    trained_sizes,
    verdict,
    work_done,
)
from miner.reporting.tables import known_scores
from miner.reporting.token_records import TokenRecords

SHOWN_EPISODES = 6
SHOWN_STEPS = 20
QUIET_S = 900.0
"""Without a heartbeat for longer, a run hangs or was killed; the container's watchdog ends one on
GPUs then. A CPU plays all held-out games at once, in minutes."""

FREE_BYTES = 2_000_000_000
_RECENT = 10
_ENDED = ("done", "stopped")
_FALLEN, _CONVERGED = 0.1, 0.9
_LEAST = 0.005
"""Share of time that is shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One episode: a headline, a line about it, and its replay."""

    key: str
    headline: str
    description: str
    replay: Replay


@dataclass(frozen=True, slots=True)
class View:
    """Everything on the page, as text, numbers and charts.

    Attributes:
        state: the run's current activity, in a sentence.
        verdict: sentence on a better model than the base, and how certain that is.
        notes: explanations of numbers, without a need to act.
        facts: (label, value, detail), the most important first.
        phases: (what time is spent on, share) over the last steps.
        plan: next events, a sentence each.
        played: game, held-out score of the base and of the newest evaluation, the latter's against
            each opponent, and the newest training episodes', where there are several.
        explained: steps whose tokens can be shown, newest first.
    """

    name: str
    state: str
    subject: str
    verdict: str
    alarms: list[str]
    notes: list[str]
    facts: list[tuple[str, str, str]]
    charts: list[Chart]
    phases: list[tuple[str, float]]
    episodes: list[Shown]
    plan: list[str]
    played: list[tuple[str, ...]]
    explained: list[int]


class LiveRun:
    """The records of a run folder, read as they grow.

    Args:
        folder: of the run; it need not be there yet.
        clock: Unix seconds.
        free: bytes that are free at a path.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self.folder = folder
        self._folder = RunFolder(folder)
        self._clock = clock
        self._free = free
        self._steps = RecordTail(folder / "metrics.jsonl", StepRecord)
        self._evaluations = RecordTail(folder / "evaluations.jsonl", EvaluationRecord)
        self._episodes = RecordTail(folder / EPISODES_FILE, TrainedEpisode)
        self._episodes.MOST_BYTES = 400_000

    def view(self) -> View:
        """The run as it is now; a record that cannot be read is the first alarm."""
        unreadable = []
        for tail in (self._steps, self._evaluations, self._episodes):
            try:
                tail.refresh()
            except ConfigurationError as error:
                unreadable.append(f"Another version of the miner wrote this: {error}")
        torn = self._steps.torn + self._evaluations.torn
        try:
            run = self._folder.run_of(self._steps.records, self._evaluations.records, torn, {})
        except ConfigurationError as error:
            unreadable.append(str(error))
            run = Run(self._folder.path.name, {}, {}, [], [], {}, 0)
        if self._steps.cut:
            unreadable.append("The records are very long: only the last steps are shown.")
        now = self._clock()
        return View(
            name=run.name,
            state=_state(run, now, self.folder),
            subject=subject(run),
            verdict=verdict(run),
            alarms=[*unreadable, *self._alarms(run, now)],
            notes=_notes(run),
            facts=_facts(run),
            charts=_charts(run),
            phases=_phases(run.steps[-_RECENT:]),
            episodes=_newest(run, self._episodes.records),
            plan=_plan(run, now),
            played=_played(run, self._episodes.records),
            explained=TokenRecords(self.folder).steps()[::-1][:SHOWN_STEPS],
        )

    def _alarms(self, run: Run, now: float) -> list[str]:
        found = []
        beat = run.heartbeat
        if beat is not None and beat.phase not in _ENDED:
            if now - beat.time > QUIET_S:
                found.append(
                    f"No sign of life for {duration(now - beat.time)}: the run hangs or was "
                    f"killed while it was in the phase {beat.phase!r}."
                )
            if beat.time - now > QUIET_S:
                found.append(
                    f"The last sign of life is {duration(beat.time - now)} in the future: the "
                    "clocks differ, so that a run that hangs would not be noticed."
                )
            if beat.phase.startswith("waiting for"):
                found.append(f"The run is {beat.phase}: nothing is learned until they answer.")
        ends_at = run.settings.get("deadline", {}).get("ends_at")
        recent = run.steps[-_RECENT:]
        if ends_at and recent and beat is not None and beat.phase not in _ENDED:
            step = fmean(record.seconds for record in recent)
            if ends_at - now < step:
                found.append(
                    f"Deadline at risk: it is in {duration(ends_at - now)}, and a step takes "
                    f"{duration(step)}."
                )
        if self._folder.path.is_dir() and (free := self._free(self._folder.path)) < FREE_BYTES:
            found.append(f"Only {free / 1e9:.1f} GB are free where the run writes.")
        return [*found, *_entropy(run), *alarms(run)]


def _entropy(run: Run) -> list[str]:
    values = [value for _, value in _metric(run, "entropy")]
    scores = [record.score for record in run.steps[-_RECENT:] if record.score is not None]
    if len(values) < 2 * _RECENT or not scores:
        return []
    first, last = fmean(values[:_RECENT]), fmean(values[-_RECENT:])
    if last > _FALLEN * first or fmean(scores) > _CONVERGED:
        return []
    return [
        f"Entropy fell from {first:.2f} to {last:.2f} while the score is {fmean(scores):.2f}: the "
        "model has stopped trying other replies; lower optimizer.learning_rate."
    ]


def _state(run: Run, now: float, folder: Path) -> str:
    beat = run.heartbeat
    if beat is None:
        return f"nothing is recorded yet at {folder}"
    if beat.phase in _ENDED:
        return f"{beat.phase} after step {beat.step}"
    phase = {"rollout": "playing episodes", "step": "learning"}.get(beat.phase, beat.phase)
    ago = "just now" if now - beat.time < 1 else f"{duration(now - beat.time)} ago"
    return f"{phase}, step {beat.step}, last sign of life {ago}"


def _notes(run: Run) -> list[str]:
    label, value, why = work_done(run) or ("", "", "")
    saved = [f"{label.capitalize()}: {value}, as {why}."] if label else []
    return [*notes(run), *saved]


def _facts(run: Run) -> list[tuple[str, str, str]]:
    held_out = [record for record in held_out_curve(run) if record.score]
    facts = []
    if held_out:
        published = [r for r in held_out if r.published][-1:]
        shown = {"base": held_out[0], "published model": (published or held_out)[0]}
        shown["newest checkpoint"] = held_out[-1]
        seen: list[EvaluationRecord] = []
        for label, record in shown.items():
            if record not in seen:
                seen.append(record)
                facts.append(_score_fact(f"{label}, score", record))
    if run.steps:
        last, recent = run.steps[-1], run.steps[-_RECENT:]
        seconds = run.settings.get("deadline", {}).get("seconds")
        ended = run.heartbeat is not None and run.heartbeat.phase in _ENDED
        most = f"of at most {last.total_steps:,} steps" if last.total_steps else "steps"
        facts.append(("progress", f"step {last.step:,}", steps_done(run) if ended else most))
        if last.eta_seconds is not None and not ended:
            whole = f"of {duration(seconds)} of training" if seconds else "of training, estimated"
            facts.append(("time left", duration(last.eta_seconds), whole))
        if rate := token_rate(recent):
            facts.append(("tokens/s", rate, f"mean of the last {len(recent)} steps"))
    return facts


def _score_fact(label: str, record: EvaluationRecord) -> tuple[str, str, str]:
    score = record.score
    assert score is not None
    detail = f"[{score.low:.3f}, {score.high:.3f}], {score.n} held-out episodes"
    return label, f"{score.mean:.3f}", f"{detail}, step {record.step}"


def _charts(run: Run) -> list[Chart]:
    sampled = [(r.step, r.score) for r in run.steps if r.score is not None]
    held_out = [
        Point(r.step, r.score.mean, r.score.low, r.score.high, r.published)
        for r in held_out_curve(run)
        if r.score and r.step is not None
    ]
    known = (each for each in known_scores(run.evaluations) if each.policy or each.name == RANDOM)
    references = [(each.name, each.mean(trained_sizes(run))) for each in known]
    note = scoring(run)
    if sampled and sampled[0][0] > run.steps[0].step:
        note += f" Own episodes are played since step {sampled[0][0]:,}."
    charts = [Chart("Score", binned(sampled), held_out, references, top=1.0, note=note)]
    grouped = (r for r in run.steps if 0 < r.groups < r.episodes)  # of more than one episode
    signal = [(r.step, 1 - r.flat_groups / r.groups) for r in grouped]
    rates = [(r.step, r.tokens_per_second) for r in run.steps if r.episodes]
    series = [
        (
            signal,
            "Groups with signal",
            "Share of groups whose episodes differ in reward. Without credit by turn, by a "
            "critic or by a function of yours only these teach.",
        ),
        (rates, "Tokens/s", "Tokens of whole episodes, prompts included, per second."),
        (
            _metric(run, TARGET_KL),
            "Distance to the targets",
            "KL divergence, in nats, of the policy from what teachers or the critic make of all "
            "legal moves. It falls while the model learns them.",
        ),
        (
            _metric(run, "entropy"),
            "Entropy",
            "How varied replies are. It falls with learning; near 0 while the score is low: "
            "the model tries nothing new.",
        ),
        (
            _metric(run, LOGPROB_GAP),
            "Logprob gap between engine and trainer",
            "Mean |log p| difference of the same tokens. Healthy: small and level. Growing: the "
            "engine does not get the trainer's weights.",
        ),
    ]
    tops = {"Groups with signal": 1.0}
    return charts + [
        Chart(title, binned(values), [], [], top=tops.get(title), note=note)
        for values, title, note in series
        if values
    ]


def _metric(run: Run, name: str) -> list[tuple[int, float]]:
    values = ((record.step, record.metrics.get(name)) for record in run.steps)
    return [(step, value) for step, value in values if value is not None and isfinite(value)]


def _phases(recent: Sequence[StepRecord]) -> list[tuple[str, float]]:
    names = {name for record in recent for name in record.phases}
    spent = {name: sum(record.phases.get(name, 0.0) for record in recent) for name in names}
    whole = sum(spent.values())
    shares = [
        (name, seconds / whole) for name, seconds in spent.items() if seconds > _LEAST * whole
    ]
    return sorted(shares, key=lambda pair: -pair[1])


def _newest(run: Run, records: Sequence[TrainedEpisode]) -> list[Shown]:
    shown = []
    for record in records[: -SHOWN_EPISODES - 1 : -1]:
        replay = _replay(record.episode, str(run.probe.get("channel", "")))
        shown.append(Shown(f"e{record.time:.6f}", headline(replay), description(replay), replay))
    return shown


def _played(run: Run, records: Sequence[TrainedEpisode]) -> list[tuple[str, ...]]:
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode in (record.episode for record in records):
        if episode.score is not None:
            scores[episode.environment][episode.opponent].append(episode.score)
    curve = [record for record in held_out_curve(run) if record.games]
    base, newest = [curve[0].games, curve[-1].games] if curve else [{}, {}]
    met = curve[-1].by_opponent if curve else {}
    if sum(map(len, scores.values())) < 2 and len(newest) < 2 and not met:
        return []
    rows = []
    for game in sorted({*scores, *newest}):
        against = (f"{score.mean:.2f} {name}" for name, score in met.get(game, {}).items())
        trained = (
            f"{fmean(some):.2f} {opponent} ({len(some)})"
            for opponent, some in sorted(scores[game].items())
        )
        held_out = (f"{base.get(game, '-')}", f"{newest.get(game, '-')}")
        others = (", ".join(found) or "-" for found in (against, trained))
        rows.append((game_title(game), *held_out, *others))
    return rows


def _replay(episode: EpisodeRecord, channel: str) -> Replay:
    """Drawn where the game can be played again as it was, else reply by reply."""
    result = EvaluationResult(
        policy="the model", channel=channel, environment=episode.environment, episodes=(episode,)
    )
    try:
        return replay_of(result, episode)
    except ValueError:
        moves = tuple(Move(by="agent", label="", replies=(reply,)) for reply in episode.replies)
        return replay_with(result, episode, moves=moves)


def _plan(run: Run, now: float) -> list[str]:
    if run.heartbeat is None or run.heartbeat.phase in _ENDED or not run.steps:
        return []
    last, plan = run.steps[-1], []
    every = run.settings.get("evaluation", {}).get("every_steps")
    if every:
        step = (last.step // every + 1) * every
        seconds = (step - last.step) * fmean(record.seconds for record in run.steps[-_RECENT:])
        late = last.eta_seconds is not None and seconds > last.eta_seconds
        at = "when training ends" if late else f"at step {step:,}"
        plan.append(f"next held-out evaluation {at}")
    deadline = run.settings.get("deadline", {})
    if deadline.get("ends_at"):
        plan.append(f"the time given ends in {duration(deadline['ends_at'] - now)}")
    return plan
