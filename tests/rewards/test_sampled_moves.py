"""Credit for sampled moves: their values less the policy's mean."""

import math
from dataclasses import replace

import pytest

from miner.config.settings import RewardSettings
from miner.rewards.goofspiel_critic import GoofspielCritic
from miner.rewards.sampled_moves import UNIT, SampledMoves
from miner.rollout.trajectory import Trajectory
from tests.builders import build_task, build_trajectory
from tests.rewards.positions import shown, user
from tests.training.test_rollout_function import Player, lost, roll

FIRST = shown(4, "12356", ("1 2 3 4 5 6", "1 2 3 4 5 6"))
LATER = shown(5, "1", ("2 6", "1 3"), (9, 9))
TASK = build_task(seed=2)  # seat 0
TAU, PENALTY = 0.05, 0.3


def game(first: str, later: str) -> Trajectory:
    return build_trajectory(1.0, task=TASK, replies=(first, later), shown=(FIRST, LATER))


def values(state: str) -> dict[str, float]:
    found = GoofspielCritic(TAU).values([user(state)], 0)
    assert found is not None
    return found


def test_a_move_is_worth_its_value_less_the_policys_mean() -> None:
    critic = GoofspielCritic(TAU)
    (best, good), (worst, bad), lost_one = SampledMoves(critic, PENALTY)(
        [game("5", "5"), game("0", "1"), None]
    )
    first, later = values(FIRST), values(LATER)
    means = [critic.mean([user(state)], 0, values(state)) for state in (FIRST, LATER)]
    assert best * UNIT == pytest.approx(first["5"] - means[0])
    assert worst * UNIT == pytest.approx(first["0"] - means[0])
    assert good * UNIT == pytest.approx(later["5"] - means[1])
    assert bad * UNIT == pytest.approx(later["1"] - means[1])
    assert good > 0 > bad
    assert lost_one == []


def test_in_a_position_that_is_lost_anyway_no_move_is_a_bad_one() -> None:
    hopeless = shown(5, "1", ("2 6", "1 3"), (0, 30))
    played = build_trajectory(0.0, task=TASK, replies=("1",), shown=(hopeless,))
    assert SampledMoves(GoofspielCritic(TAU), PENALTY)([played]) == [[0.0]]


def test_the_mean_follows_how_the_policy_bids() -> None:
    critic, found = GoofspielCritic(TAU), values(FIRST)
    at_random = sum(found.values()) / len(found)
    assert critic.mean([user(FIRST)], 0, found) == pytest.approx(at_random)
    credit = SampledMoves(critic, PENALTY)
    for _ in range(100):
        credit([game("5", "5")])
    credit.learn(lambda seen: [seen])
    found = critic.values([user(FIRST)], 0) or {}
    # prize 4 is the fourth of six, and met the highest card
    assert critic.mean([user(FIRST)], 0, found) > 0.9 * found["5"] + 0.1 * min(found.values())


def test_replies_without_a_move_or_cut_off_cost_the_penalty() -> None:
    credit = SampledMoves(GoofspielCritic(TAU), PENALTY)
    plain = build_trajectory(1.0, task=TASK, replies=("5",), shown=(FIRST,))
    invalid = build_trajectory(
        1.0, task=TASK, replies=("x", "5"), valid=(False, True), shown=(FIRST, "Again?")
    )
    cut = replace(plain, turns=(replace(plain.turns[0], finish_reason="length"),))
    (one,), (without, retried), (short,) = credit([plain, invalid, cut])
    assert (one - short) * UNIT == pytest.approx(PENALTY)
    # a retry is of the same round and position
    assert retried == pytest.approx(one)
    move = values(FIRST)["5"] - sum(values(FIRST).values()) / 6
    assert (one - without) * UNIT == pytest.approx(PENALTY + move)


def test_the_regret_and_what_was_bid_are_of_all_ranks() -> None:
    critic = GoofspielCritic(TAU)
    credit = SampledMoves(critic, PENALTY)
    credit([game("3", "5"), None])
    first = values(FIRST)
    before = critic.habits.counts.sum()
    credit.learn(lambda seen: [seen, ([(1, (0.0, 1.0))], [0.5])])
    gains = [max(first.values()) - first["3"], 0.0, 0.5]
    assert credit.regret == pytest.approx(sum(gains) / 3)
    assert critic.habits.counts.sum() == pytest.approx(before + 3, abs=0.1)
    credit.learn(lambda seen: [seen])
    assert math.isnan(credit.regret)


def test_a_step_has_its_advantages_group_by_group_and_its_regret() -> None:
    reward = RewardSettings(credit="sampled_moves", tau=TAU, invalid_reply_penalty=PENALTY)
    columns = roll(Player(game("5", "5"), game("0", "1"), game("5", "1"), lost()), reward)
    mine = SampledMoves(GoofspielCritic(TAU), PENALTY)
    groups = [game("5", "5"), game("0", "1")], [game("5", "1"), None]
    assert columns["turn_advantages"] == [values for group in groups for values in mine(group)]
    assert columns["turn_advantages"][3] == []
