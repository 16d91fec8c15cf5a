"""A tokenizer to which a turn is a hundred tokens: lines, options, numbers, hands, rows of boards.

Invariant: every text encodes and decodes to itself; what is no token falls back to bytes.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations_with_replacement, product

from transformers import PreTrainedTokenizerFast

from miner.config.contract import DUEL_BOARDS
from miner.duel.channel.tasks import Size
from miner.games.liars_dice import DICE, FACES
from miner.tiny_model.tokenizer import piece_tokenizer

CALL = '<tool_call>\n{"name": "game_action", "arguments": {"action_id": ', "}}\n</tool_call>"
"""A move's call around its id."""

TIE = " -3"
"""Goofspiel: in the place of a round's winner."""

NUMBERS = 65
"""Numbers below this are single tokens: ids of all games but Clobber and gin rummy's melds."""

_PIECES = "|".join(
    (
        r"<tool_call>\n[^\n\d]*",
        r"\}\}\n</tool_call>",
        r"\n\d+ -> [^\n]*",
        r"\d[.xo]{5,6}(?=\n)",  # a row of Clobber's board
        r" \[\d(?:, \d)*\]| \(showing[^)]*\)",  # a hand of Liar's dice
        r" ?-?\d+(?=[ \n}]|$)",  # a tie in Goofspiel is -3
        r"(?:(?! -?\d+(?:[ \n}]|$)| \[\d,)[^\n])+",
        r"\n+",
    )
)


def duel_tokenizer(
    texts: Iterable[str], sizes: Collection[Size] = (), ids: int = NUMBERS
) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template whose tokens are the pieces of `texts`.

    Args:
        sizes: of games; each row that a board of one of them can have is a token.
        ids: numbers below this are single tokens too.
    """
    numbers = [text for number in range(max(ids, NUMBERS)) for text in (str(number), f" {number}")]
    return piece_tokenizer(_PIECES, (*CALL, TIE, *numbers, *_hands(), *_rows(sizes), *texts))


def _hands() -> Iterator[str]:
    """Liar's dice: each hand as its state shows it."""
    for dice in combinations_with_replacement(range(1, FACES + 1), DICE):
        shown = ", ".join(map(str, dice))
        yield f" [{shown}] (showing: {shown})"


def _rows(sizes: Collection[Size]) -> Iterator[str]:
    """Clobber: each row that a board can have."""
    for board in (each for each in DUEL_BOARDS if each in sizes):
        rows, columns = map(int, board.split("x"))
        for row, squares in product(range(1, rows + 1), product(".xo", repeat=columns)):
            yield f"{row}{''.join(squares)}\n"
