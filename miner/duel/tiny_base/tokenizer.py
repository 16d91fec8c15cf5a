"""A tokenizer to which a turn of Goofspiel is a hundred tokens: lines, options and numbers.

Invariant: every text encodes and decodes to itself; what is no token falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from miner.tiny_model.tokenizer import piece_tokenizer

CALL = '<tool_call>\n{"name": "game_action", "arguments": {"action_id": ', "}}\n</tool_call>"
"""A move's call around its id."""

NUMBERS = 65
"""Numbers below this are single tokens: ids of all games but Clobber and gin rummy's melds."""

_PIECES = "|".join(
    (
        r"<tool_call>\n[^\n\d]*",
        r"\}\}\n</tool_call>",
        r"\n\d+ -> [^\n]*",
        r"\d(?=[.xo]{5,6}\n)|[.xo](?=[.xo]*\n)",  # a row of Clobber's board, square by square
        r" ?\d+(?=[ \n}]|$)",
        r"(?:(?! \d+(?:[ \n}]|$))[^\n])+",
        r"\n+",
    )
)


def duel_tokenizer(texts: Iterable[str], ids: int = NUMBERS) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template whose tokens are the pieces of `texts`.

    Args:
        ids: numbers below this are single tokens too.
    """
    numbers = [text for number in range(max(ids, NUMBERS)) for text in (str(number), f" {number}")]
    return piece_tokenizer(_PIECES, (*CALL, *numbers, *texts))
