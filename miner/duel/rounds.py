"""Chances in the tournament's rounds, from a league's results.

A round decides by ranks that hang on a few hundred games, so each chance is the share of resampled
leagues (Efron's bootstrap over seed pairs, the unit of which the games share their deal) in which
the rule holds:
* a group among several: the best but for the boss advances, equals all;
* a single group: the same, and the boss must be beaten;
* the final: three tasks against the boss, none of them lost, draws suffice. Two are duels; the
  third, swe_infinite, cannot be played here and is taken for a draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from miner.config.contract import FINAL_TASKS
from miner.duel.league import LeagueResult
from miner.duel.outcome import POINTS
from miner.duel.scoring import Scores, advancing, task_scores

DRAWS = 400
DUELS_OF_THE_FINAL = FINAL_TASKS - 1

Pairs = dict[tuple[str, str, str], list[tuple[float, int]]]
"""By game and both players: points of the first player and games, for each seed pair."""


@dataclass(frozen=True, slots=True)
class Odds:
    """A player's chances, each in [0, 1].

    Attributes:
        group: to advance from a group among several.
        single_group: to advance from the only group, where the boss is named.
        final: to win the final, where the boss is named.
        next_game: where being best would raise `group` most; None if it would nowhere.
        gain: by how much.
    """

    player: str
    group: float
    single_group: float | None
    final: float | None
    next_game: str | None
    gain: float


def odds(result: LeagueResult, *, draws: int = DRAWS, seed: int = 0) -> list[Odds]:
    """Return the odds of all players but the boss, best first."""
    pairs = seed_pairs(result)
    rng = Random(seed)
    tables = [scores_of(result, resampled(pairs, rng)) for _ in range(draws)]
    rivals = [name for name in result.players if name != result.boss]
    found = [_odds(result, pairs, tables, player, rng) for player in rivals]
    return sorted(found, key=lambda odds: (-odds.group, odds.player))


def final_won(contender: Sequence[float], boss: Sequence[float]) -> bool:
    """Return whether a contender's scores win the final: no task lost, draws suffice."""
    return all(mine >= theirs for mine, theirs in zip(contender, boss, strict=True))


def seed_pairs(result: LeagueResult) -> Pairs:
    """The league's results by seed pair; matches that broke off are left out."""
    pairs: Pairs = {}
    for match in result.matches:
        by_seed: defaultdict[int, list[float]] = defaultdict(list)
        for record in () if match.failure else match.games:
            by_seed[record.seed].append(POINTS[record.result])
        played = [(sum(points), len(points)) for points in by_seed.values()]
        if played:
            pairs[match.game, match.first, match.second] = played
    return pairs


def resampled(pairs: Pairs, rng: Random) -> Pairs:
    """As many seed pairs of each match, drawn with replacement."""
    return {match: rng.choices(played, k=len(played)) for match, played in pairs.items()}


def scores_of(result: LeagueResult, pairs: Pairs) -> dict[str, Scores]:
    """By game, each player's share of points, pooled over all its games."""
    tables: dict[str, Scores] = {}
    for game in result.games:
        sums = {name: [0.0, 0] for name in result.players}
        for (played, first, second), entries in pairs.items():
            if played == game:
                points, games = sum(p for p, _ in entries), sum(n for _, n in entries)
                for name, won in ((first, points), (second, games - points)):
                    sums[name][0] += won
                    sums[name][1] += games
        tables[game] = {name: won / games if games else 0.0 for name, (won, games) in sums.items()}
    return tables


def _odds(
    result: LeagueResult,
    pairs: Pairs,
    tables: Sequence[Mapping[str, Scores]],
    player: str,
    rng: Random,
) -> Odds:
    boss = result.boss
    group = _share(player in _among_several(table, boss) for table in tables)
    gains = {
        game: _share(
            player in _among_several(_best_in(table, game, player), boss) for table in tables
        )
        - group
        for game in result.games
    }
    best = max(gains, key=lambda game: gains[game])
    single = final = None
    if boss is not None:
        single = _share(player in advancing(task_scores(table), boss) for table in tables)
        duel = {key: entries for key, entries in pairs.items() if {player, boss} == set(key[1:])}
        final = _share(_draw_of_final(result, duel, player, boss, rng) for _ in tables)
    return Odds(
        player, group, single, final, best if gains[best] > 0 else None, max(gains[best], 0)
    )


def _draw_of_final(result: LeagueResult, duel: Pairs, player: str, boss: str, rng: Random) -> bool:
    """Return whether `player` wins a final of resampled duels with the boss."""
    tasks = []
    for _ in range(DUELS_OF_THE_FINAL):
        table = scores_of(result, resampled(duel, rng))
        two = {
            game: {name: scores[name] for name in (player, boss)} for game, scores in table.items()
        }
        tasks.append(task_scores(two))
    return final_won([task[player] for task in tasks], [task[boss] for task in tasks])


def _among_several(table: Mapping[str, Scores], boss: str | None) -> list[str]:
    """Those who advance from one of several groups: the boss counts for ranks only."""
    scores = task_scores(table)
    return advancing({name: score for name, score in scores.items() if name != boss})


def _best_in(table: Mapping[str, Scores], game: str, player: str) -> dict[str, Scores]:
    return {**table, game: {**table[game], player: 2.0}}


def _share(held: Iterable[bool]) -> float:
    outcomes = list(held)
    return sum(outcomes) / len(outcomes)
