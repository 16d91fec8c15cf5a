"""Chances in the tournament's rounds, from a league's results."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from miner.__main__ import app
from miner.duel.league import LeagueResult
from miner.duel.match import MatchResult
from miner.duel.outcome import GameRecord, Usage
from miner.duel.rounds import final_won, odds, resampled, scores_of, seed_pairs
from miner.duel.turn import Result

OPPOSITE: dict[str, Result] = {"w": "win", "l": "loss", "d": "draw"}


def match(game: str, first: str, second: str, results: str) -> MatchResult:
    """A match with these results of the first player, two games for each seed."""
    games = [
        GameRecord(
            game, number // 2, number % 2, [], [0, 0], OPPOSITE[result], None, (Usage(), Usage())
        )
        for number, result in enumerate(results)
    ]
    return MatchResult(game, first, second, games)


def league(*matches: MatchResult, boss: str | None = "boss") -> LeagueResult:
    """The matches' league, players and games in the order in which they appear."""
    players = dict.fromkeys(name for m in matches for name in (m.first, m.second))
    return LeagueResult(
        list(players), list(dict.fromkeys(m.game for m in matches)), list(matches), boss
    )


EVEN, BEATEN, LOST, DRAWN = "wl" * 20, "w" * 40, "l" * 40, "d" * 40


def test_a_player_that_wins_all_is_sure_of_everything() -> None:
    [best, other] = odds(
        league(
            match("clobber", "a", "b", BEATEN),
            match("clobber", "a", "boss", BEATEN),
            match("clobber", "b", "boss", LOST),
        )
    )
    assert (best.player, best.group, best.single_group, best.final) == ("a", 1.0, 1.0, 1.0)
    assert (best.next_game, best.gain) == (None, 0.0)
    assert (other.player, other.group, other.single_group, other.final) == ("b", 0.0, 0.0, 0.0)
    assert (other.next_game, other.gain) == ("clobber", 1.0)


def test_the_boss_has_to_be_beaten_in_the_only_group_and_not_among_several() -> None:
    [found] = odds(league(match("clobber", "a", "boss", LOST)))
    assert (found.group, found.single_group, found.final) == (1.0, 0.0, 0.0)


def test_draws_suffice_in_the_final_and_not_in_the_only_group() -> None:
    [found] = odds(league(match("clobber", "a", "boss", DRAWN)))
    assert (found.single_group, found.final) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("mine", "theirs", "won"),
    [
        ((1, 0.5, 0.5), (0, 0.5, 0.5), True),
        ((1, 1, 0), (0, 0, 1), False),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), True),
    ],
)
def test_no_task_of_the_final_may_be_lost(
    mine: tuple[float, ...], theirs: tuple[float, ...], won: bool
) -> None:
    assert final_won(mine, theirs) is won


def test_both_duels_of_the_final_must_be_won() -> None:
    """Pairs of two wins or two losses: an odd number of them is never drawn."""
    [found] = odds(league(match("clobber", "a", "boss", "ww" * 15 + "ll" * 16)), draws=1000)
    assert found.single_group is not None
    assert 0.3 < found.single_group < 0.6
    assert found.final == pytest.approx(found.single_group**2, abs=0.06)


def test_the_game_to_train_next_is_the_one_that_costs_the_round() -> None:
    found = {
        odds.player: odds
        for odds in odds(
            league(
                match("clobber", "a", "b", BEATEN),
                match("clobber", "a", "boss", BEATEN),
                match("clobber", "b", "boss", BEATEN),
                match("othello", "a", "b", LOST),
                match("othello", "a", "boss", LOST),
                match("othello", "b", "boss", BEATEN),
            )
        )
    }
    assert (found["a"].group, found["b"].group) == (0.0, 1.0)
    assert (found["a"].next_game, found["a"].gain) == ("othello", 1.0)


def test_without_resampling_scores_are_the_leagues() -> None:
    result = league(
        match("clobber", "a", "b", "wwld"), match("clobber", "a", "boss", "wl"), boss="boss"
    )
    assert scores_of(result, seed_pairs(result)) == {
        "clobber": result.environment_scores("clobber")
    }
    pairs = seed_pairs(result)
    drawn = resampled(pairs, Random(0))
    assert {key: len(entries) for key, entries in drawn.items()} == {
        key: len(entries) for key, entries in pairs.items()
    }


def test_a_league_prints_the_chances(tmp_path: Path) -> None:
    words = ["league", "random", "bid", "--games", "goofspiel", "--pairs", "4", "--boss", "random"]
    result = CliRunner().invoke(app, [*words, "--rounds", "--out", str(tmp_path)])
    assert result.exit_code == 0
    [line] = [line for line in result.output.splitlines() if line.startswith("  bid:")]
    assert "to win the final against random" in line
