"""Warnings about a run: alarms, which need action, and notes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import isnan
from statistics import fmean

from miner.reporting.records import LOGPROB_GAP, StepRecord, gap_is_wide
from miner.reporting.run_folder import Run
from miner.reporting.tables import latest

_RECENT_STEPS = 10
_MANY_INVALID = 0.05
_MANY_FLAT = 0.5
_EXTREME = 0.05
_CUT_OFF = "were cut off at rollout.max_reply_tokens"
_DRIFT = {
    "fork": "where the chat template rewrote earlier tokens, so that a new row began (fork)",
    "realign": "where the same text has other token boundaries, and the sampled ones were kept "
    "(realign)",
}
_FAILED = {
    "invalid_replies": "were ended by invalid replies",
    "timeout": "ran out of time",
    "protocol": "were ended by a reply that the environment cannot read",
    "policy": "were ended by a failure of the player",
    "too_long": "had prompts beyond rollout.max_episode_tokens and are not counted",
    "too_slow": "ran out of this machine's time and are not counted",
    "no_time": "were not over when the time for them was, and are not counted",
    "infrastructure": "were lost to the infrastructure and are not counted",
}


def run_warnings(run: Run) -> list[str]:
    """Sentences, the gravest first; empty for a run without trouble."""
    return alarms(run) + notes(run)


def alarms(run: Run) -> list[str]:
    """Reasons to act: as it is, the run learns badly, or something else than what is graded."""
    found = [*_numbers(run), *_environment(run), *_replies(run)]
    warning, channel = _channel(run)
    if warning and channel == "auto":
        found.insert(0, f"Not trained on what is graded: {warning}.")
    return found


def notes(run: Run) -> list[str]:
    """Explanations of a run's numbers, without a need to act."""
    warning, channel = _channel(run)
    chosen = channel in ("auto", "step", "graded", "builtin")
    found = [f"Channel {channel}: {warning}."] if warning and not chosen else []
    found += [*_drift(run), *_evaluations(run)]
    if run.torn_lines:
        found.append(
            f"{run.torn_lines} line(s) of the records were cut off by a kill and are missing here."
        )
    return found


def _channel(run: Run) -> tuple[str, str]:
    """The probe's warning, and the channel that the settings name."""
    channel = run.settings.get("environment", {}).get("channel", "auto")
    return str(run.probe.get("warning") or ""), channel


def _numbers(run: Run) -> list[str]:
    bad = [r.step for r in run.steps if any(map(isnan, r.metrics.values()))]
    found = [f"Not a number in the metrics, first at step {bad[0]}."] if bad else []
    gaps = [(r.metrics[LOGPROB_GAP], r.step) for r in run.steps if LOGPROB_GAP in r.metrics]
    first = run.first_gap
    gaps = [(gap, step) for gap, step in gaps if gap_is_wide(gap, first)]
    if gaps:
        worst, step = max(gaps)
        found.append(
            f"Engine and trainer disagree about the same tokens: their logprob gap was "
            f"{first:.3f} at first and {worst:.3f} at step {step}, too wide in "
            f"{len(gaps)} of {len(run.steps)} steps, first in step {min(at for _, at in gaps)}. "
            "The engine plays with other weights, dtype or temperature than the trainer has: "
            "scores since then are not the trained model's. Stop the run and read the engine's log."
        )
    return found


def _environment(run: Run) -> list[str]:
    found = []
    too_long = sum(record.too_long_episodes for record in run.steps)
    lost = sum(record.lost_episodes for record in run.steps) - too_long
    played = sum(record.episodes for record in run.steps)
    if too_long:
        found.append(
            f"{too_long:,} episodes did not fit into rollout.max_episode_tokens and taught nothing "
            f"({played:,} were played)."
        )
    if lost:
        found.append(
            f"{lost:,} episodes were lost to failures of the environment ({played:,} were played)."
        )
    rates = [
        record.action_applied_rate for record in run.steps if record.action_applied_rate is not None
    ]
    if rates and min(rates) < 1:
        found.append(
            f"The environment applied only {min(rates):.1%} of the actions so far as asked, when "
            "that was lowest: its scores are not those of the replies. Use the graded or builtin "
            "channel."
        )
    return found


def _drift(run: Run) -> list[str]:
    drift: Counter[str] = Counter()
    for record in run.steps:
        drift.update(record.drift)
    troubled = {kind: count for kind, count in drift.items() if kind != "clean" and count}
    if not troubled:
        return []
    kinds = ", ".join(f"{count:,} {_DRIFT[kind]}" for kind, count in sorted(troubled.items()))
    share = sum(troubled.values()) / sum(drift.values())
    return [f"Token drift at {share:.1%} of the turn boundaries: {kinds}."]


def _replies(run: Run) -> list[str]:
    found = []
    recent = run.steps[-_RECENT_STEPS:]
    replies, groups = sum(r.replies for r in recent), sum(r.groups for r in recent)
    credit = run.settings.get("reward", {}).get("credit")
    # turns differ, whether totals do or not
    by_episode = credit not in ("turn", "all_moves", "own")
    flat = sum(r.flat_groups for r in recent) if by_episode else 0
    illegal = "held no legal action" if run.of_games else "were not valid"
    for count, what in (
        (sum(r.invalid_replies for r in recent), illegal),
        (sum(r.cut_replies for r in recent), _CUT_OFF),
    ):
        if replies and count / replies > _MANY_INVALID:
            found.append(
                f"{count / replies:.1%} of the replies in the last {len(recent)} steps {what}."
            )
    if groups and flat / groups > _MANY_FLAT:
        found.append(
            f"Flat groups: in {flat / groups:.1%} of the groups of the last {len(recent)} steps "
            f"all episodes had the same reward, so nothing was learned from them. {_cause(recent)}"
        )
    return found


def _cause(recent: Sequence[StepRecord]) -> str:
    """The likely cause of flat groups by the mean score, and its remedy."""
    score = fmean([record.score for record in recent if record.score is not None] or [0.5])
    if score > 1 - _EXTREME:
        return f"Their mean score is {score:.2f}: this is learned; train on harder episodes."
    if score < _EXTREME:
        return f"Their mean score is {score:.2f}: too hard for this model; begin with easier ones."
    return (
        f"Their mean score is {score:.2f}, so the replies within a group are too much alike: raise "
        "rollout.temperature or rollout.group_size."
    )


def _evaluations(run: Run) -> list[str]:
    """A sentence for each kind of failure, over all evaluations."""
    failed: Counter[str] = Counter()
    where: dict[str, Counter[str]] = defaultdict(Counter)
    faults: Counter[str] = Counter()
    for record in latest(run.evaluations):
        faults.update(record.faults)
        for kind, count in record.failures.items():
            if count:
                failed[kind] += count
                step = f" of step {record.step}" if record.name == "checkpoint" else ""
                where[kind][record.name + step] += count
    found = []
    for kind, count in failed.most_common():
        players = ", ".join(f"{name} {n:,}" for name, n in where[kind].items())
        reasons = ", ".join(f"{fault} {n:,}" for fault, n in faults.most_common())
        because = f"; faults: {reasons}" if kind == "invalid_replies" and reasons else ""
        found.append(
            f"In evaluations {count:,} episodes {_FAILED.get(kind, kind)} ({players}){because}."
        )
    return found
