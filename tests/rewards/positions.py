"""Positions of Goofspiel as a policy is shown them."""

from miner.environments.base import EpisodeTask, Message

SEATS = tuple(EpisodeTask("goofspiel", 1, seed, "random") for seed in (0, 1))
"""A task in which the policy has each seat."""


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
