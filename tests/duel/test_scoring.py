"""From games to ranks: every recorded table."""

from __future__ import annotations

import pytest

from miner.duel.outcome import result_of
from miner.duel.scoring import (
    Tally,
    advancing,
    environment_scores,
    quantiles,
    standings,
    task_scores,
)
from tests.duel.golden import Line, golden


def _lines(function: str) -> list[Line]:
    return [line for line in golden("scoring") if line["function"] == function]


def test_outcomes_lie_around_the_middle_of_the_returns() -> None:
    for line in _lines("determine_outcome"):
        found = result_of(
            line["returns"],
            line["player_id"],
            zero_sum=line["is_zero_sum"],
            lowest=line["min_utility"],
            highest=line["max_utility"],
        )
        assert found == line["outcome"], line


@pytest.mark.parametrize("line", _lines("group"), ids=lambda line: line["table"])
def test_groups_are_ranked_as_recorded(line: Line) -> None:
    tallies: dict[str, list[Tally]] = {}
    for pair in line["pairs"]:
        for name, counts in pair["results"].items():
            tally = Tally(pair["a"], pair["b"], counts["a_wins"], counts["b_wins"], counts["draws"])
            tallies.setdefault(name, []).append(tally)
    scores = {name: environment_scores(line["miners"], played) for name, played in tallies.items()}
    scores |= line["individual"]
    assert scores == line["environment_scores"]
    assert {name: quantiles(table) for name, table in scores.items()} == line["quantiles"]
    assert [list(entry) for entry in standings(task_scores(scores, line["weights"]))] == line[
        "standings"
    ]


def test_a_weight_counts_for_as_much() -> None:
    scores = {"othello": {"a": 0.9, "b": 0.1}, "clobber": {"a": 0.1, "b": 0.9}}
    assert task_scores(scores, {"othello": 3.0}) == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize("line", _lines("environment_group_advancers"), ids=lambda x: x["case"])
def test_the_best_of_each_group_go_on(line: Line) -> None:
    assert advancing(line["groups"], "boss") == line["advancing"]
