"""What is learned, and whether: the two sentences at the head of a run's pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist

from miner.games import GAMES
from miner.reporting.records import EvaluationRecord
from miner.reporting.run_folder import Run

_SERVED = {
    "step": "through the environment servers' /step",
    "graded": "through the environment servers' own grading",
    "builtin": "with the miner's built-in game",
}


def subject(run: Run) -> str:
    """What is learned: games or environment, opponents, channel."""
    environment = run.settings.get("environment", {})
    if not environment:
        return "something whose settings are not recorded yet"
    channel = run.probe.get("channel") or environment.get("channel", "auto")
    if channel == "duel":
        listed = Counter(environment.get("games", []))
        games = ", ".join(
            f"{game.replace('_', ' ')} ({count / listed.total():.0%})"
            for game, count in listed.items()
        )
        return f"duels in {games}, against {', '.join(environment.get('opponents', []))}"
    if not run.of_games:
        return f"{', '.join(run.environments)} (channel {channel})"
    sizes = ", ".join(map(str, trained_sizes(run)))
    name, opponent = environment.get("name", "?"), environment.get("opponent", "random")
    cards = f" with {sizes} cards" if sizes and name in GAMES and GAMES[name].sizes else ""
    game, way = name.replace("_", " ").capitalize(), _SERVED.get(channel, f"channel {channel}")
    return f"{game}{cards} against the {opponent} opponent, {way}"


def verdict(run: Run) -> str:
    """Return whether a better model than the base was published, and how certain that is."""
    held_out = [record for record in held_out_curve(run) if record.score]
    if not held_out:
        return "Not known yet whether it learns: no held-out episodes were played so far."
    if len(held_out) == 1:
        return "Not known yet whether it learns: of held-out episodes only the base has played."
    published = [record for record in held_out if record.published][-1:] or held_out[:1]
    gain, count = published[0].difference, len(held_out) - 1
    if gain is None:
        return (
            f"No better than its base so far: none of {count} checkpoint(s) was clearly better on "
            "held-out episodes, and the base stays published."
        )
    found = (
        f"{gain.signed} on the same {gain.n} held-out episodes (95% interval), published at step "
        f"{published[0].step}"
    )
    widened = NormalDist().inv_cdf(1 - 0.025 / count) / NormalDist().inv_cdf(0.975)
    if gain.mean > widened * (gain.mean - gain.low):  # Bonferroni
        return f"Better than its base: {found}. More than chance, even for the best of {count}."
    return f"Perhaps better than its base: {found}. As the best of {count} it may be chance."


def held_out_curve(run: Run) -> list[EvaluationRecord]:
    """The held-out evaluations along the way; an evaluation repeated at a step counts once."""
    held_out = [record for record in run.evaluations if record.split == "held_out"]
    return list({record.step: record for record in held_out if record.step is not None}.values())


def trained_sizes(run: Run) -> Sequence[int]:
    """Deck sizes by the run's settings; empty where they name none."""
    environment = run.settings.get("environment")
    sizes = environment.get("deck_sizes") if isinstance(environment, dict) else None
    return [size for size in sizes if isinstance(size, int)] if isinstance(sizes, list) else []
