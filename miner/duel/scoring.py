"""From scores to ranks: quantiles, standings, who advances.

All functions are pure; a table of scores is a dictionary from player to score.
"""

from collections.abc import Mapping

Scores = dict[str, float]


def quantiles(scores: Mapping[str, float]) -> Scores:
    """Rank from 0 (lowest) to 1 (highest); equals share the mean of their ranks; alone: 0.5."""
    if len(scores) == 1:
        return dict.fromkeys(scores, 0.5)
    ordered = sorted(scores.values())
    ranks = {}
    for name, score in scores.items():
        below = ordered.index(score)
        equal = ordered.count(score)
        ranks[name] = (below + (equal - 1) / 2) / (len(ordered) - 1)
    return ranks


def task_scores(environments: Mapping[str, Mapping[str, float]]) -> Scores:
    """Mean of each player's quantiles over the environments, which count alike.

    Margins vanish: only the order within an environment counts.
    """
    sums: Scores = {}
    for scores in environments.values():
        for player, quantile in quantiles(scores).items():
            sums[player] = sums.get(player, 0.0) + quantile
    return {player: value / len(environments) for player, value in sums.items()}


def standings(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Players and scores, best first; equals by name."""
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))


def advancing(group: Mapping[str, float], boss: str | None = None) -> list[str]:
    """Names of those who advance from a group: the best, equals all.

    A boss in it has to be beaten: if it is not below the best other, none advances.
    """
    best = max(score for name, score in group.items() if name != boss)
    if boss is not None and group[boss] >= best:
        return []
    return [name for name, score in group.items() if name != boss and score == best]
