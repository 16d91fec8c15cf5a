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
from miner.reporting.replay import replay_of
from miner.reporting.replay_page import headline, replay_html
from tests.reporting.made import build_replay, lowest_replies, replay


@given(st.integers(0, 99_999_999), st.integers(0, 1_000_000))
def test_the_rounds_make_up_a_whole_game(task_id: int, seed: int) -> None:
    game = replay(task_id, seed)
    size = game.deck_size
    assert size is not None
    cards = set(range(1, size + 1))
    assert len(game.rounds) == size
    for values in (
        [r.prize for r in game.rounds],
        [r.agent_bid for r in game.rounds],
        [r.opponent_bid for r in game.rounds],
    ):
        assert set(values) == cards
    agent = opponent = 0
    for number, played in enumerate(game.rounds):
        assert len(played.agent_hand) == len(played.opponent_hand) == size - number
        assert played.agent_bid in played.agent_hand
        assert played.opponent_bid in played.opponent_hand
        agent += played.prize * (played.winner == "agent")
        opponent += played.prize * (played.winner == "opponent")
        assert (played.agent_points, played.opponent_points) == (agent, opponent)
    assert game.score == (0.5 if agent == opponent else float(agent > opponent))
    assert [played.forced for played in game.rounds] == [False] * (size - 1) + [True]


async def test_an_evaluated_episode_becomes_a_replay_with_its_exact_replies() -> None:
    result = await evaluate(BaselinePolicy("match"), BuiltinSource(), episode_list(10))
    for episode in result.episodes:
        game = replay_of(result, episode)
        said = [reply for played in game.rounds for reply in played.replies]
        assert tuple(said) == episode.replies
        assert [played.agent_bid - 1 for played in game.rounds if not played.forced] == [
            reply.action for reply in episode.replies
        ]
        assert game.policy == "match (bid = prize)"


def test_invalid_replies_stand_with_the_round_they_delayed_or_ended() -> None:
    task = EpisodeTask("goofspiel", 0, 0)
    replies, _ = lowest_replies(task, turns=2)
    bad = Reply(text="hm", action=None, valid=False, number=False)
    said = [replies[0], bad, replies[1], bad, bad, bad]
    game = build_replay(task, said, score=0.0, failure="invalid_replies")
    assert [len(played.replies) for played in game.rounds] == [1, 2]
    assert game.unanswered == (bad, bad, bad)
    assert headline(game).startswith("Broken off at")
    assert "The replies that ended it" in replay_html(game)


def test_an_episode_broken_off_before_the_first_bid_is_still_a_page() -> None:
    bad = Reply(text="?", action=None, valid=False, number=False)
    game = build_replay(
        EpisodeTask("goofspiel", 0, 0), [bad] * 3, score=0.0,
        failure="invalid_replies",
    )  # fmt: skip
    assert headline(game) == "Broken off: invalid replies"
    assert "The replies that ended it" in replay_html(game)


def test_another_game_is_told_move_by_move() -> None:
    task = EpisodeTask("leduc_poker", 200_000_000, 3)
    replies, score = lowest_replies(task)
    game = build_replay(task, replies, score=score)
    assert game.rounds == ()
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
    assert [r.prize for r in graded.rounds] != [r.prize for r in step.rounds]


def test_a_reply_is_shown_as_text_whatever_it_says() -> None:
    evil = "<script>alert(1)</script></pre><img src=x onerror=alert(2)> {{ 7 * 7 }}"
    game = replay()
    first = game.rounds[0].model_copy(update={"replies": (Reply(text=evil, action=0),)})
    page = replay_html(
        game.model_copy(update={"rounds": (first, *game.rounds[1:]), "policy": "<script>p"})
    )
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }}" in page
