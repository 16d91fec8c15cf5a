"""The potential against chances worked out by other means, and what shaping adds to a turn."""

from math import sqrt
from statistics import NormalDist

import pytest

from miner.environments.base import Message
from miner.games.goofspiel import StateTextError, chance_to_win
from miner.rewards.potential import shaped_rewards


def user(content: str) -> Message:
    """A message to the policy."""
    return {"role": "user", "content": content}


def shown(
    prize: int,
    remaining: str,
    hands: tuple[str, str],
    points: tuple[int, int] = (0, 0),
) -> str:
    """A chat message with a state block, as the grader words it."""
    return (
        "Your turn.\n\n"
        f"Current point card: {prize}\nRemaining Point Cards: {remaining}\n"
        f"P0 hand: {hands[0]}\nP1 hand: {hands[1]}\nWin sequence: \n"
        "(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)\n"
        f"Player 0: {points[0]} points, Player 1: {points[1]} points \n"
        "\nLegal Actions:\n0 -> [P0]Bid: 1\n"
    )


@pytest.mark.parametrize(
    ("state", "chance"),
    [
        # the last cards decide, and are known
        (shown(2, "", ("3", "1")), 1.0),
        (shown(2, "", ("1", "3")), 0.0),
        (shown(2, "", ("2", "2")), 0.5),
        (shown(2, "", ("1", "3"), (5, 1)), 1.0),
        (shown(2, "", ("1", "3"), (3, 1)), 0.5),
        (shown(2, "", ("2", "2"), (3, 4)), 0.0),
    ],
)
def test_the_chance_is_exact_where_nothing_is_left_to_luck(state: str, chance: float) -> None:
    assert chance_to_win(state, 0) == chance
    assert chance_to_win(state, 1) == 1 - chance


@pytest.mark.parametrize(
    ("state", "lead", "variance"),
    [
        # hands alike: each prize goes either way in half of the draws, and nowhere in the other
        (shown(3, "5", ("1 2", "1 2"), (2, 0)), 2.0, 0.5 * (9 + 25)),
        # three draws of four are won: half of all points in expectation
        (shown(3, "5", ("2 4", "1 3")), 0.5 * 8, (1 - 0.25) * (9 + 25)),
        (shown(3, "5", ("2 4", "1 3"), (0, 7)), 0.5 * 8 - 7, (1 - 0.25) * (9 + 25)),
        # ties count for nobody: of nine draws four are won and three lost
        (shown(1, "23", ("1 2 4", "1 2 3")), 1 / 9 * 6, (7 / 9 - 1 / 81) * (1 + 4 + 9)),
    ],
)
def test_the_chance_is_the_normal_approximation(state: str, lead: float, variance: float) -> None:
    expected = NormalDist().cdf(lead / sqrt(variance))
    assert chance_to_win(state, 0) == pytest.approx(expected)
    assert chance_to_win(state, 1) == pytest.approx(1 - expected)
    assert expected != pytest.approx(0.5)


def test_a_message_without_a_state_is_an_error() -> None:
    with pytest.raises(StateTextError, match="no Goofspiel state block"):
        chance_to_win("Illegal move, try again.", 0)


def test_a_turn_gains_what_it_adds_to_the_chance() -> None:
    """A turn that leads to a better state is rewarded, one that leads to a worse one is not."""
    assert shaped_rewards([0.0, 0.0, 1.0], [0.5, 0.75, 0.25]) == [0.25, -0.5, 0.75]
    assert shaped_rewards([-1.0, 0.0], [0.5, 0.5]) == [-1.0, -0.5]
    assert shaped_rewards([1.0], [0.25]) == [0.75]


@pytest.mark.parametrize("path", [[0.5, 0.9, 0.1], [0.5, 0.5], [0.5, 0.1, 0.2, 1.0]])
def test_over_an_episode_only_its_beginning_is_left(path: list[float]) -> None:
    rewards = [0.0] * (len(path) - 1) + [1.0]
    assert sum(shaped_rewards(rewards, path)) == pytest.approx(1.0 - 0.5)
