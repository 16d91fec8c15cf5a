"""Goofspiel's text format is read back exactly, or refused."""

import pytest

from miner.games import goofspiel
from miner.games.goofspiel import GoofspielState, StateTextError, parse_state

LEGEND = "(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)"


def block(
    prize: str = "7",
    remaining: str = "123468",
    hand0: str = "1 2 3 4 6 7 8 ",
    hand1: str = "1 2 3 5 6 7 8 ",
    wins: str = "0",
    pad: str = " ",
    points: tuple[str, str] = ("5", "0"),
) -> str:
    """A state block as the server writes it in the second round of an 8-card game."""
    return (
        f"Current point card: {prize}\nRemaining Point Cards: {remaining}\n"
        f"P0 hand: {hand0}\nP1 hand: {hand1}\nWin sequence: {wins}\n{LEGEND}{pad}\n"
        f"Player 0: {points[0]} points, Player 1: {points[1]} points \n"
    )


def test_a_state_block_is_read() -> None:
    assert parse_state("# Something before\n" + block() + "\n\nand after") == GoofspielState(
        prize=7,
        remaining=(1, 2, 3, 4, 6, 8),
        hands=((1, 2, 3, 4, 6, 7, 8), (1, 2, 3, 5, 6, 7, 8)),
        points=(5, 0),
        wins=(0,),
    )


def test_the_first_round_has_no_wins() -> None:
    assert parse_state(block(wins="", pad="")).wins == ()


def test_a_tie_is_minus_three() -> None:
    assert parse_state(block(wins="0 -3 1")).wins == (0, goofspiel.TIE, 1)


@pytest.mark.parametrize(
    ("digits", "held", "cards"),
    [
        ("112", 3, (1, 12)),
        ("1213", 3, (12, 13)),
        ("1213", 4, (1, 2, 13)),
        ("12", 2, (12,)),
        ("12", 3, (1, 2)),
        ("91011", 4, (9, 10, 11)),
        ("", 1, ()),
    ],
)
def test_prizes_without_separators_are_distinguished_by_the_hand(
    digits: str, held: int, cards: tuple[int, ...]
) -> None:
    hand = " ".join(str(card) for card in range(1, held + 1)) + " "
    assert parse_state(block(remaining=digits, hand0=hand, hand1=hand)).remaining == cards


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Current point card: 7",
        block(prize="seven"),
        block(hand0="1 2 3 "),
        block(hand0="", hand1=""),
        block(remaining="1"),
        block(remaining="864321"),
        block(remaining="12346810111213"),
        block(wins="--"),
        block(points=("5", "")),
        block().replace("P1 hand", "P2 hand"),
    ],
)
def test_a_malformed_block_is_refused(text: str) -> None:
    with pytest.raises(StateTextError):
        parse_state(text)


def test_the_observation_of_openspiel_becomes_the_block() -> None:
    cards = "Current point card: 5\nRemaining Point Cards: 12\nP0 hand: 1 2 3 \nP1 hand: 1 2 3 \n"
    assert goofspiel.state_text(cards + "Win sequence: \nPoints: 0 0 \n") == (
        f"{cards}Win sequence: \n{LEGEND}\nPlayer 0: 0 points, Player 1: 0 points \n"
    )
    assert goofspiel.state_text(cards + "Win sequence: 0 -3 \nPoints: 14 3 \n") == (
        f"{cards}Win sequence: 0 -3\n{LEGEND} \nPlayer 0: 14 points, Player 1: 3 points \n"
    )


def test_a_turn_is_read_for_either_seat() -> None:
    text = "words\n" + block() + "\n\nmore words"
    for seat, hand in enumerate(((1, 2, 3, 4, 6, 7, 8), (1, 2, 3, 5, 6, 7, 8))):
        turn = goofspiel.turn_shown(text, seat)
        assert turn is not None
        assert turn.state_text == block()
        assert turn.seat == seat
        assert turn.labels == {card - 1: f"[P{seat}]Bid: {card}" for card in hand}
    assert goofspiel.turn_shown("no block here", 0) is None


def test_sizes_and_labels() -> None:
    assert [goofspiel.GOOFSPIEL.size(task_id) for task_id in range(6)] == [8, 10, 12, 14, 16, 8]
    assert goofspiel.label(1, 14) == "[P1]Bid: 15"
    assert goofspiel.label(-1, 4) == "Deal 5"
