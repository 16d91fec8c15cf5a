"""From games to ranks: every recorded table."""

import pytest

from miner.duel.league import LeagueResult
from miner.duel.match import MatchResult
from miner.duel.outcome import GameRecord, Usage, game_results
from miner.duel.scoring import advancing, quantiles, standings, task_scores
from tests.duel.golden import Line, golden


def _lines(function: str) -> list[Line]:
    return [line for line in golden("scoring") if line["function"] == function]


def test_outcomes_are_around_the_middle_of_the_returns() -> None:
    """Of zero-sum games, which all six are (test_transcripts)."""
    lines = [line for line in _lines("determine_outcome") if line["is_zero_sum"]]
    for line in lines:
        assert game_results(line["returns"])[line["player_id"]] == line["outcome"], line
    assert len(lines) == 7


def _match(game: str, pair: Line, counts: Line) -> MatchResult:
    """A match with so many games of each result, in both seats."""
    results = ["win"] * counts["a_wins"] + ["loss"] * counts["b_wins"] + ["draw"] * counts["draws"]
    records = [
        GameRecord(game, 1, number % 2, [], [], result, None, (Usage(), Usage()))
        for number, result in enumerate(results)
    ]
    return MatchResult(game, pair["a"], pair["b"], records)


@pytest.mark.parametrize("line", _lines("group"), ids=lambda line: line["table"])
def test_groups_are_ranked_as_recorded(line: Line) -> None:
    matches = [
        _match(name, pair, counts)
        for pair in line["pairs"]
        for name, counts in pair["results"].items()
    ]
    games = [name for name in line["environment_scores"] if name not in line["individual"]]
    league = LeagueResult(line["miners"], games, matches)
    scores = {game: league.environment_scores(game) for game in games} | line["individual"]
    assert scores == line["environment_scores"]
    assert {name: quantiles(table) for name, table in scores.items()} == line["quantiles"]
    assert [list(entry) for entry in standings(task_scores(scores))] == line["standings"]


@pytest.mark.parametrize("line", _lines("environment_group_advancers"), ids=lambda x: x["case"])
def test_the_best_of_each_group_go_on(line: Line) -> None:
    bosses = ["boss" if "boss" in group else None for group in line["groups"]]
    going = map(advancing, line["groups"], bosses)
    assert [name for names in going for name in names] == line["advancing"]
