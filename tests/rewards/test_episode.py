"""Rewards of finished episodes, as a whole and turn by turn."""

from dataclasses import replace

import pytest

from miner.environments import EpisodeTask
from miner.games.goofspiel import chance_to_win
from miner.rewards.episode import EpisodeReward
from miner.rollout.trajectory import Trajectory
from tests.builders import build_trajectory
from tests.rewards.test_potential import shown

SEATS = (0, 1)


def trajectory(*valid: bool, score: float = 1.0, seat: int = 0) -> Trajectory:
    return build_trajectory(
        score,
        task=EpisodeTask("goofspiel", 0, 10 + seat),
        replies=["1"] * len(valid),
        valid=valid,
    )


def by_message(text: str, seat: int) -> float:
    """A potential that only the shown round decides: 0.1, 0.2, ..."""
    return int(text.removeprefix("Round ")) / 10


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


def test_a_reply_that_ends_the_game_by_failing_keeps_its_penalty_and_its_score() -> None:
    (only,) = EpisodeReward(0.25).by_turn(trajectory(False, score=1.0))
    assert only == (0, 0.75)


def test_the_reward_of_a_turn_is_its_change_of_the_potential() -> None:
    turns = EpisodeReward(0.25, by_message).by_turn(trajectory(True, True, True))
    assert [number for number, _ in turns] == [0, 1, 2]
    assert [reward for _, reward in turns] == pytest.approx([0.1, 0.1, 0.7])


def test_a_reply_that_was_no_action_leaves_the_potential_as_it_was() -> None:
    """The message after it asks again, and shows no state to read."""
    asked: list[str] = []

    def potential(text: str, seat: int) -> float:
        asked.append(text)
        return by_message(text, seat)

    turns = EpisodeReward(0.25, potential).by_turn(trajectory(True, False, False, True))
    assert asked == ["Round 1", "Round 2"]
    assert turns == [
        (0, pytest.approx(0.1)),
        (1, pytest.approx(-0.25)),
        (1, pytest.approx(-0.25)),
        (1, pytest.approx(0.8)),
    ]


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ((False, True), [(0, -0.25), (0, 0.9)]),
        ((True, False), [(0, 0.1), (1, 0.55)]),
        ((True, False, True, False), [(0, 0.1), (1, -0.25), (1, 0.2), (2, 0.35)]),
    ],
)
def test_invalid_replies_at_either_end_leave_the_potential_too(
    valid: tuple[bool, ...], expected: list[tuple[int, float]]
) -> None:
    """Rounds show 0.1, 0.2, ...; a retried turn keeps what the turn before it saw."""
    turns = EpisodeReward(0.25, by_message).by_turn(trajectory(*valid))
    assert turns == [(number, pytest.approx(reward)) for number, reward in expected]


@pytest.mark.parametrize("seat", SEATS)
def test_the_potential_is_that_of_the_agents_own_seat(seat: int) -> None:
    """From an even start the game goes to whoever sits at 0; the first turn brought that about."""
    even, won = shown(2, "1", ("1 2", "1 2")), shown(1, "", ("2", "1"), (2, 0))
    played = trajectory(True, True, score=1.0 - seat, seat=seat)
    messages = [({"role": "user", "content": text},) for text in (even, won)]
    turns = tuple(
        replace(turn, messages=shown_at)
        for turn, shown_at in zip(played.turns, messages, strict=True)
    )
    first, last = EpisodeReward(0.0, chance_to_win).by_turn(replace(played, turns=turns))
    assert first == (0, 0.5 - seat)
    assert last == (1, 0.0)


def test_the_latest_message_of_a_turn_shows_the_state() -> None:
    played = trajectory(True)
    system, user = {"role": "system", "content": "Rules"}, {"role": "user", "content": "Round 4"}
    turn = replace(played.turns[0], messages=(system, user))
    (only,) = EpisodeReward(0.0, by_message).by_turn(replace(played, turns=(turn,)))
    assert only == (0, pytest.approx(0.6))
