"""Summary of a run in sentences and numbers: subject, gain over the base, progress, cost."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

from miner.config.channel_facts import FACTS
from miner.games import GAMES
from miner.reporting.records import (
    COMPUTED_TOKENS,
    LEFT_OUT,
    ROW_TOKENS,
    ROWS,
    EvaluationRecord,
    StepRecord,
)
from miner.reporting.run_folder import Run

_SERVED = {
    "step": "through the environment servers' /step",
    "graded": "through the environment servers' own grading",
    "builtin": "with the miner's built-in game",
}


def subject(run: Run) -> str:
    """Subject of learning: games or environment, opponents, channel."""
    environment = run.settings.get("environment", {})
    if not environment:
        return "something whose settings are not recorded yet"
    channel = run.probe.get("channel") or environment.get("channel", "auto")
    if channel in FACTS and FACTS[channel].duels:
        listed = Counter(environment.get("games", []))
        games = ", ".join(
            f"{game.replace('_', ' ')} ({count / listed.total():.0%})"
            for game, count in listed.items()
        )
        return f"duels in {games}, against {', '.join(environment.get('opponents', []))}"
    if not run.of_games:
        names = run.environments or [str(run.probe.get("environment", "an environment"))]
        return f"{', '.join(names)} (channel {channel})"
    sizes = ", ".join(map(str, trained_sizes(run)))
    name, opponent = environment.get("name", "?"), environment.get("opponent", "random")
    cards = f" with {sizes} cards" if sizes and name in GAMES and GAMES[name].sizes else ""
    game, way = name.replace("_", " ").capitalize(), _SERVED.get(channel, f"channel {channel}")
    return f"{game}{cards} against the {opponent} opponent, {way}"


def verdict(run: Run) -> str:
    """Sentence on a better model than the base, its publication, and how certain that is."""
    held_out = [record for record in held_out_curve(run) if record.score]
    if not held_out:
        return "Not known yet whether it learns: no held-out episodes were played so far."
    if len(held_out) == 1:
        return "Not known yet whether it learns: of held-out episodes only the base has played."
    looks = [each for each in run.evaluations if each.split == "held_out" and each.score]
    count = len({each.step for each in looks if each.step})  # those of abandoned attempts too
    gains = [(record.difference, record) for record in held_out if record.difference]
    published = [pair for pair in gains if pair[1].published]
    better = published or [pair for pair in gains if pair[0].low > 0 or pair[1].withheld]
    if not better:
        return (
            f"No better than its base so far: none of {count} checkpoint(s) was clearly better on "
            "held-out episodes, and the base stays published."
        )
    gain, record = published[-1] if published else max(better, key=lambda pair: pair[0].low)
    fate = f"published at step {record.step}"
    if not record.published:
        fate = f"but not {fate}" + f" ({record.withheld})" * bool(record.withheld)
    found = f"{gain.signed} on the same {gain.n} held-out episodes (95% interval), {fate}"
    widened = NormalDist().inv_cdf(1 - 0.025 / count) / NormalDist().inv_cdf(0.975)
    if gain.mean > widened * (gain.mean - gain.low):  # Bonferroni
        return f"Better than its base: {found}. More than chance, even for the best of {count}."
    return f"Perhaps better than its base: {found}. As the best of {count} it may be chance."


def token_rate(steps: Sequence[StepRecord]) -> str:
    """Tokens a second of steps with episodes; "" without any."""
    played = [record for record in steps if record.episodes]
    seconds = sum(record.seconds for record in played)
    tokens = sum(record.tokens_per_second * record.seconds for record in played)
    return f"{tokens / seconds:,.0f}" if seconds else ""


def held_out_curve(run: Run) -> list[EvaluationRecord]:
    """The held-out evaluations along the way, in order of time: the last one is the newest.

    A process that continues from a checkpoint repeats the steps after it, so that earlier records
    of them go, except the published model's."""
    kept: list[EvaluationRecord] = []
    repeated = math.inf
    for record in reversed(run.evaluations):
        if record.split != "held_out" or record.step is None:
            continue
        stays = record.published and not any(later.published for later in kept)
        if record.step < repeated or stays:
            kept.append(record)
        repeated = min(repeated, record.step)
    return kept[::-1]


def trained_sizes(run: Run) -> Sequence[int]:
    """Deck sizes by the run's settings; empty where they name none."""
    environment = run.settings.get("environment")
    sizes = environment.get("deck_sizes") if isinstance(environment, dict) else None
    return [size for size in sizes if isinstance(size, int)] if isinstance(sizes, list) else []


def steps_done(run: Run) -> str:
    """Steps trained; where a time limit ended training, the planned ones were only a bound."""
    last = run.steps[-1]
    most = last.total_steps or last.step
    if last.step < most and run.limited_by_time:
        return f"{last.step:,} steps in the time given (at most {most:,})"
    return f"{last.step:,} of {most:,} steps" if last.total_steps else f"{last.step:,} steps"


def work_done(run: Run) -> tuple[str, str, str] | None:
    """Label, share of the rows' tokens that were not computed to learn from them, and why not; None
    where no step has recorded it."""
    counted = [record.metrics for record in run.steps if record.metrics.get(ROW_TOKENS)]
    if not counted:
        return None
    rows, left, tokens, computed = (
        sum(metrics.get(name, 0.0) for metrics in counted)
        for name in (ROWS, LEFT_OUT, ROW_TOKENS, COMPUTED_TOKENS)
    )
    prompts, held = (
        sum(getattr(record, name) for record in run.steps)
        for name in ("prompt_tokens", "cached_tokens")
    )
    why = "beginnings that rows share are computed once"
    if run.settings.get("reward", {}).get("credit") == "all_moves":
        why += " (each legal reply is a row)"
    if left:
        why += f", {left / rows:.0%} of the rows not at all: nothing is to be learned from them"
    if held:
        why += f"; {held / prompts:.0%} of the prompts' tokens were cached"
    return "tokens saved in learning", f"{1 - computed / tokens:.0%}", why


def scoring(run: Run) -> str:
    """The meaning of a score, in a sentence."""
    if run.of_games:
        return "A win scores 1, a draw 0.5, a loss 0."
    return str(run.probe.get("scoring") or "Scores lie between 0 and 1, and 1 is best.")
