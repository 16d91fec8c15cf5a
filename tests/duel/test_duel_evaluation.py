"""Evaluating over duels: scores by game and seat, forfeits by cause, replays played again."""

import json
import re
from pathlib import Path

import pyspiel
import pytest

from miner.duel.channel.findings import warning_of
from miner.duel.channel.tasks import duel_task
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.evaluation.statistics import mean_score, paired_difference
from miner.reporting.page import write_report
from miner.reporting.records import EvaluationRecord
from miner.reporting.replay_page import in_script, replay_html
from miner.reporting.run_folder import RunFolder
from tests.commands import miner


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluation")
    words = ["policy=random", "environment.channel=duel", "episodes=24", f"out={out}"]
    games = ["environment.games=othello,leduc_poker", "replays=2"]
    miner("evaluate", *words, *games)
    return out


def test_a_baseline_plays_the_tournaments_games(played: Path) -> None:
    [record] = RunFolder(played).read().evaluations
    assert (record.channel, record.environment) == ("duel", "duel")
    assert {game: score.n for game, score in record.by_game.items()} == {
        "duel:othello": 12,
        "duel:leduc_poker": 12,
    }
    assert {seat: score.n for seat, score in record.by_seat.items()} == {0: 12, 1: 12}
    assert record.faults == {}
    page = write_report(played).read_text()
    assert "leduc poker" in page
    assert "Grey rows" not in page


def test_scores_of_each_opponent_are_shown_where_several_were_met(tmp_path: Path) -> None:
    def result(**met: float) -> EvaluationResult:
        episodes = tuple(
            EpisodeRecord.of(duel_task("othello", seed, 0, opponent), score=score)
            for opponent, score in met.items()
            for seed in range(2)
        )
        return EvaluationResult(
            policy="m", channel="duel", environment="duel:othello", episodes=episodes
        )

    folder = RunFolder(tmp_path)
    several = result(random=1.0, teacher=0.25)
    for found in (several, result(random=1.0)):
        record = EvaluationRecord.of(found, split="grader", time=0.0)
        assert bool(record.by_opponent) == (found is several)
        folder.evaluations.append(record.model_copy(update={"name": str(len(found.episodes))}))
    page = write_report(tmp_path).read_text()
    assert re.findall("Against [a-z]+", page) == [
        "Against base",
        "Against random",
        "Against teacher",
    ]
    [row] = re.findall("<td>4</td><td>othello</td>.*?</tr>", page, flags=re.S)
    assert re.findall(r">\s*([\d.]+)\s*<", row) == ["4", "0.625", "1.00", "0.25", "4"]


def test_intervals_are_of_pairs_of_games() -> None:
    """Both seats of a seed; they are copies here."""

    def result(*scores: float) -> EvaluationResult:
        episodes = tuple(
            EpisodeRecord.of(duel_task(game, seed, seat, "bid"), score=score)
            for game in ("goofspiel", "othello")
            for seed, score in enumerate(scores)
            for seat in (0, 1)
        )
        return EvaluationResult(policy="m", channel="duel", environment="duel", episodes=episodes)

    better, base = result(1, 1, 1, 0), result(0, 1, 0, 0)
    record = EvaluationRecord.of(better, split="grader", time=0.0, base=base)
    single, shared = mean_score([1, 1, 1, 0]), mean_score([1, 1, 1, 0] * 2)
    assert record.score.low == pytest.approx(shared.low)
    assert record.by_game["duel:othello"].low == pytest.approx(single.low)
    assert record.by_seat[0].low == pytest.approx(shared.low), "a seat has one game of each pair"
    gain = paired_difference(dict(enumerate([1, 1, 1, 0] * 2)), dict(enumerate([0, 1, 0, 0] * 2)))
    assert record.difference.low == pytest.approx(gain.low)


def test_a_replay_has_every_move_of_both_sides(played: Path) -> None:
    replays = RunFolder(played).read().replays.values()
    replay = next(each for each in replays if each.environment == "duel:othello")
    opening = [move for move in replay.moves if move.label.startswith("opening")]
    assert 2 <= len(opening) <= 6
    agents = [move for move in replay.moves if move.by == "agent"]
    assert agents
    for move in agents:  # its label is the move that its reply asked for
        [reply] = move.replies
        call = json.loads(reply.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert call["arguments"]["action_id"] == reply.action
    said = [scene["said"] for scene in replay.scenes if "said" in scene]
    assert said == [move.replies[0].text for move in agents]
    assert any(move.by == "opponent" for move in replay.moves)
    played = [move for move in replay.moves if move.by in ("agent", "opponent")]
    assert len(replay.scenes) == 1 + len(played)
    state = pyspiel.load_game("othello").new_initial_state()
    for move in replay.moves:  # both sides' labels are those of the moves, in their order
        state.apply_action(state.string_to_action(move.label.removeprefix("opening: ")))
    assert state.is_terminal()
    assert {"board", "mover", "move"} <= replay.scenes[-1].keys()
    page = replay_html(replay)
    assert '"frames": [{"board"' in page, "drawn as on the league's page"
    assert "</script>" not in in_script([{"text": "</script>"}])


def test_a_look_warns_of_what_forfeits() -> None:
    warning = warning_of(True, {"othello": 1400, "gin_rummy": 1600}, context=2048)
    assert warning.endswith("forfeits long turns of gin_rummy")
    assert warning_of(True, {"othello": 9999}, context=None) == ""
    assert "shows no tools" in warning_of(False, {}, context=None)
