"""Replays tell a game exactly as it went, and show replies as nothing but text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.environments import EpisodeTask
from miner.environments.builtin import BuiltinSource
from miner.evaluation.grader import episode_list
from miner.evaluation.policies import BaselinePolicy
from miner.evaluation.results import Reply
from miner.evaluation.runner import evaluate
from miner.games import GAMES, Game
from miner.reporting.replay import replay_of
from miner.reporting.replay_page import headline, replay_html
from tests.reporting.made import build_replay, lowest_replies, replay


@given(st.integers(0, 99_999_999), st.integers(0, 1_000_000))
def test_the_scenes_make_up_a_whole_game(task_id: int, seed: int) -> None:
    game = replay(task_id, seed)
    assert game.seat is not None
    cards = {str(card) for card in range(1, (game.deck_size or 0) + 1)}
    bids = {seat: [s["move"] for s in game.scenes[1:] if s["mover"] == seat] for seat in (0, 1)}
    for played in bids.values():  # the last round plays itself
        assert len(played) == len(set(played)) == len(cards) - 1
    won = [0, 0]
    for prize, *both in game.scenes[-1]["rounds"]:
        won[both[1] > both[0]] += prize * (both[0] != both[1])
    assert game.scenes[-1]["facts"] == [["points", f"{won[0]} : {won[1]}"]]
    mine, other = won[game.seat], won[1 - game.seat]
    assert game.score == (0.5 if mine == other else float(mine > other))
    for scene in game.scenes:
        _, *hands = scene["rows"]
        assert [{item["card"] for item in hand["items"]} for hand in hands] == [cards, cards]


@pytest.mark.parametrize("game", GAMES.values(), ids=list(GAMES))
def test_every_game_is_drawn_before_and_after_each_move(game: Game) -> None:
    for seed in (4, 5):
        task = EpisodeTask(game.name, game.task_ids[0] + 1, seed)
        replies, score = lowest_replies(task)
        shown = build_replay(task, replies, score=score)
        moves = [move for move in shown.moves if move.by != "chance"]
        assert len(shown.scenes) == len(moves) + 1
        movers = [scene["mover"] == shown.seat for scene in shown.scenes[1:]]
        assert movers == [move.by == "agent" for move in moves]
        answers = [scene["said"] for scene in shown.scenes if "said" in scene]
        assert answers == [reply.text for reply in replies]


async def test_an_evaluated_episode_becomes_a_replay_with_its_exact_replies() -> None:
    result = await evaluate(BaselinePolicy("match"), BuiltinSource(), episode_list(10))
    for episode in result.episodes:
        game = replay_of(result, episode)
        assert tuple(reply for move in game.moves for reply in move.replies) == episode.replies
        bids = [move.label for move in game.moves if move.by == "agent"]
        assert [int(bid.rpartition(" ")[2]) for bid in bids] == [
            (reply.action or 0) + 1 for reply in episode.replies
        ]
        assert game.policy == "match (bid = prize)"


def test_invalid_replies_are_shown_with_the_move_they_delayed_or_ended() -> None:
    task = EpisodeTask("goofspiel", 0, 0)
    replies, _ = lowest_replies(task, turns=2)
    bad = Reply(text="hm", action=None, valid=False, number=False)
    said = [replies[0], bad, replies[1], bad, bad, bad]
    game = build_replay(task, said, score=0.0, failure="invalid_replies")
    assert [len(move.replies) for move in game.moves if move.by == "agent"] == [1, 2]
    assert game.unanswered == (bad, bad, bad)
    assert headline(game) == "Broken off: invalid replies"
    assert "The replies that ended it" in replay_html(game)


def test_an_episode_broken_off_before_the_first_bid_is_still_a_page() -> None:
    bad = Reply(text="?", action=None, valid=False, number=False)
    game = build_replay(
        EpisodeTask("goofspiel", 0, 0), [bad] * 3, score=0.0,
        failure="invalid_replies",
    )  # fmt: skip
    assert headline(game) == "Broken off: invalid replies"
    assert "The replies that ended it" in replay_html(game)


def test_a_game_is_listed_move_by_move() -> None:
    task = EpisodeTask("leduc_poker", 200_000_000, 3)
    replies, score = lowest_replies(task)
    game = build_replay(task, replies, score=score)
    assert {move.by for move in game.moves} == {"chance", "agent", "opponent"}
    assert [r for move in game.moves for r in move.replies] == replies
    page = replay_html(game)
    assert "Move by move" in page
    assert all(move.label in page for move in game.moves)


def test_actions_that_lead_elsewhere_are_no_replay_of_this_game() -> None:
    task = EpisodeTask("goofspiel", 0, 0)
    replies, score = lowest_replies(task)
    with pytest.raises(ValueError, match="other cards"):
        build_replay(task, replies, score=1.0 - score)
    with pytest.raises(ValueError, match="is not legal"):
        build_replay(task, [replies[0]] * 2, score=None)
    unknown = Reply(text="7 maybe", action=None)
    with pytest.raises(ValueError, match="'7 maybe' is not known"):
        build_replay(task, [unknown], score=None)


def test_the_step_channel_has_its_own_prizes() -> None:
    task = EpisodeTask("goofspiel", 0, 0)
    replies, _ = lowest_replies(task, turns=3)
    graded, step = (
        build_replay(task, replies, channel=channel, score=None) for channel in ("graded", "step")
    )
    prizes = [[row[0] for row in game.scenes[-1]["rounds"]] for game in (graded, step)]
    assert prizes[0] != prizes[1]


def test_a_reply_is_shown_as_text() -> None:
    evil = "<script>alert(1)</script></pre><img src=x onerror=alert(2)> {{ 7 * 7 }}"
    episode = replay()
    task = EpisodeTask(episode.environment, episode.task_id, episode.seed)
    first, *others = lowest_replies(task)[0]
    game = build_replay(
        task, [Reply(text=evil, action=first.action), *others], score=None, policy="<script>p"
    )
    page = replay_html(game)
    assert page.count("<script") == page.count("</script") == 1, "the stepper's"
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }}" in page


@pytest.mark.parametrize("seat", [0, 1])
def test_a_page_says_who_won_and_who_sits_where(seat: int) -> None:
    game = replay(seed=seat)
    for score, word in ((1.0, "Won"), (0.5, "Drawn"), (0.0, "Lost")):
        assert headline(game.model_copy(update={"score": score})).startswith(word)
    seats = '["lowest", "random"]' if seat == 0 else '["random", "lowest"]'
    assert f'"seats": {seats}' in replay_html(game)
