"""Rewards of finished episodes, as a whole and turn by turn."""

from dataclasses import replace

from miner.environments import EpisodeTask
from miner.rewards.episode import EpisodeReward
from miner.rollout.trajectory import Trajectory
from tests.builders import build_trajectory


def trajectory(*valid: bool, score: float = 1.0) -> Trajectory:
    return build_trajectory(
        score,
        task=EpisodeTask("goofspiel", 0, 10),
        replies=["1"] * len(valid),
        valid=valid,
    )


def test_the_reward_is_the_score_less_a_penalty_for_each_invalid_reply() -> None:
    worth = EpisodeReward(0.25)
    assert worth.total(trajectory(True, True, score=0.5)) == 0.5
    assert worth.total(trajectory(False, True, False, True)) == 0.5
    assert worth.total(trajectory(False, False, False, score=0.0)) == -0.75
    assert EpisodeReward(0.0).total(trajectory(False, True)) == 1.0


def test_a_reply_that_was_cut_off_is_penalised_though_a_part_of_it_was_played() -> None:
    whole = trajectory(True, True)
    first, last = whole.turns
    cut = replace(whole, turns=(replace(first, finish_reason="length"), last))
    reward = EpisodeReward(0.25)
    assert (reward.total(whole), reward.total(cut)) == (1.0, 0.75)
    assert reward.by_turn(cut) == [(0, -0.25), (1, 1.0)]


def test_turns_have_the_part_of_the_reward_that_they_earned() -> None:
    worth = EpisodeReward(0.25)
    played = trajectory(True, False, True, True, score=0.5)
    assert worth.by_turn(played) == [(0, 0.0), (1, -0.25), (1, 0.0), (2, 0.5)]
    assert worth.by_turn(trajectory(True, False, score=0.0)) == [(0, 0.0), (1, -0.25)]
    assert sum(reward for _, reward in worth.by_turn(played)) == worth.total(played)


def test_a_middle_turn_has_its_reward_and_the_last_one_the_rest_of_the_score() -> None:
    whole = trajectory(True, False, True, score=0.75)
    turns = [replace(t, reward=r) for t, r in zip(whole.turns, (0.0, 1.0, 0.5), strict=True)]
    played = replace(whole, turns=tuple(turns))
    worth = EpisodeReward(0.25, span=2.0)
    assert worth.by_turn(played) == [(0, 0.0), (1, 0.25), (1, 0.25)]
    assert sum(reward for _, reward in worth.by_turn(played)) == worth.total(played)


def test_a_reply_that_ends_the_game_by_failing_keeps_its_penalty_and_its_score() -> None:
    (only,) = EpisodeReward(0.25).by_turn(trajectory(False, score=1.0))
    assert only == (0, 0.75)
