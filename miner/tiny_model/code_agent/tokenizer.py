"""A tokenizer whose numbers are whole tokens, as a tiny model needs them to copy numbers.

Invariant: every text encodes and decodes to itself; what is no token falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from miner.tiny_model.tokenizer import EOS, PAD, ROLES, chat_tokenizer

TAGS = ("<code>", "</code>", "<output>", "</output>")
WORDS = ("print(", ")", " + ", " - ", " * ", " plus", " minus", " times")
_PIECES = r"</?(?:code|output)>| [-+*] |-?\d+| [a-z]+|[a-z]+\(|[a-z]+|[\s\S]"


def agent_tokenizer(
    lowest: int, highest: int, words: Sequence[str] = WORDS
) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, for numbers from `lowest` to `highest` and for `words`."""
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    texts = (*TAGS, *words, *map(str, range(lowest, highest + 1)))
    pieces = [piece for text in texts for piece, _ in cut.pre_tokenize_str(text)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = dict.fromkeys((PAD, EOS, *ROLES, *alphabet, *pieces))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return chat_tokenizer(vocabulary, [], cut)
