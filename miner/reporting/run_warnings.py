"""What a person should know before trusting a run: lost episodes, drift, invalid replies, ..."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import isnan

from miner.reporting.records import LOGPROB_GAP, gap_is_wide
from miner.reporting.run_folder import Run

_RECENT_STEPS = 10
_MANY_INVALID = 0.05
_MANY_FLAT = 0.5
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
    "infrastructure": "were lost to the infrastructure and are not counted",
}
_FLAT = "had no variance in their rewards, so nothing was learned from them"


def run_warnings(run: Run) -> list[str]:
    """Sentences, the gravest first; empty for a run without trouble."""
    found = [
        *_channel(run),
        *_numbers(run),
        *_environment(run),
        *_replies(run),
        *_evaluations(run),
    ]
    if run.torn_lines:
        found.append(
            f"{run.torn_lines} line(s) of the records were cut off by a kill and are missing here."
        )
    return found


def _channel(run: Run) -> list[str]:
    warning = run.probe.get("warning")
    channel = run.settings.get("environment", {}).get("channel", "auto")
    if not warning or channel in ("step", "graded", "builtin"):  # chosen by who knows
        return []
    if channel == "auto":
        return [f"Not trained on what is graded: {warning}."]
    return [f"Channel {channel}: {warning}."]


def _numbers(run: Run) -> list[str]:
    bad = [r.step for r in run.steps if isnan(r.reward) or any(map(isnan, r.metrics.values()))]
    found = [f"Not a number in the metrics, first at step {bad[0]}."] if bad else []
    gaps = [(r.metrics[LOGPROB_GAP], r.step) for r in run.steps if LOGPROB_GAP in r.metrics]
    gaps = [(gap, step) for gap, step in gaps if gap_is_wide(gap, run.first_gap)]
    if gaps:
        worst, step = max(gaps)
        found.append(
            f"Engine and trainer disagreed about sampled tokens in {len(gaps)} step(s), by "
            f"{worst:.2f} in log-probability on average at step {step}: they did not have the same "
            "weights, dtype or temperature."
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
            f"The environment applied only {min(rates):.1%} of the actions as asked in the worst "
            "step: its scores are not those of the replies. Use the graded or builtin channel."
        )
    return found


def _replies(run: Run) -> list[str]:
    found = []
    drift: Counter[str] = Counter()
    for record in run.steps:
        drift.update(record.drift)
    troubled = {kind: count for kind, count in drift.items() if kind != "clean" and count}
    if troubled:
        kinds = ", ".join(f"{count:,} {_DRIFT[kind]}" for kind, count in sorted(troubled.items()))
        share = sum(troubled.values()) / sum(drift.values())
        found.append(f"Token drift at {share:.1%} of the turn boundaries: {kinds}.")
    recent = run.steps[-_RECENT_STEPS:]
    replies, groups = sum(r.replies for r in recent), sum(r.groups for r in recent)
    credit = run.settings.get("reward", {}).get("credit")  # turns differ, whether totals do or not
    flat = 0 if credit in ("turn", "all_moves") else sum(r.flat_groups for r in recent)
    illegal = "held no legal action" if run.of_games else "were not valid"
    for kind, count, whole, most, what in (
        ("replies", sum(r.invalid_replies for r in recent), replies, _MANY_INVALID, illegal),
        ("replies", sum(r.cut_replies for r in recent), replies, _MANY_INVALID, _CUT_OFF),
        ("groups", flat, groups, _MANY_FLAT, _FLAT),
    ):
        if whole and count / whole > most:
            found.append(
                f"{count / whole:.1%} of the {kind} in the last {len(recent)} steps {what}."
            )
    return found


def _evaluations(run: Run) -> list[str]:
    """A sentence for each kind of failure, over all evaluations."""
    failed: Counter[str] = Counter()
    where: dict[str, Counter[str]] = defaultdict(Counter)
    faults: Counter[str] = Counter()
    for record in run.evaluations:
        faults.update(record.faults)
        for kind, count in record.failures.items():
            if count:
                failed[kind] += count
                where[kind][record.name] += count
    found = []
    for kind, count in failed.most_common():
        players = ", ".join(f"{name} {n:,}" for name, n in where[kind].items())
        reasons = ", ".join(f"{fault} {n:,}" for fault, n in faults.most_common())
        because = f"; faults: {reasons}" if kind == "invalid_replies" and reasons else ""
        found.append(
            f"In evaluations {count:,} episodes {_FAILED.get(kind, kind)} ({players}){because}."
        )
    return found
