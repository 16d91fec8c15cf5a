"""A tokenizer whose numbers are whole tokens, as a tiny model needs them to copy numbers.

Invariant: every text encodes and decodes to itself; what is not a token falls back to bytes.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from miner.tiny_model.tokenizer import piece_tokenizer

TAGS = ("<code>", "</code>", "<output>", "</output>")
WORDS = ("print(", ")", " + ", " - ", " * ", " plus", " minus", " times")
_PIECES = r"</?(?:code|output)>| [-+*] |-?\d+| [a-z]+|[a-z]+\(|[a-z]+|[\s\S]"


def agent_tokenizer(
    lowest: int, highest: int, words: Sequence[str] = WORDS
) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, for numbers from `lowest` to `highest` and for `words`."""
    return piece_tokenizer(_PIECES, (*TAGS, *words, *map(str, range(lowest, highest + 1))))
