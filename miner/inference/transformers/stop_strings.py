"""Ends replies at texts, in any tokenisation."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

SLACK = 2
"""Tokens more than the longest stop string has bytes: some tokenizers drop a space at the start."""


class StopStrings:
    """Test of whether the last sampled token has completed one of some texts.

    Args:
        stop: the texts, none of them empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        if not all(stop):
            raise ValueError(f"stop strings {list(stop)} hold an empty one: leave it out")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # A token that is text has a byte at least, so a string that just ended began within these.
        self._window = max(len(text.encode()) for text in stop) + SLACK

    def __call__(self, sampled: Sequence[int]) -> bool:
        """Return whether the text of `sampled` holds a stop string that it did not hold before."""
        text = self._tokenizer.decode(
            list(sampled[-self._window :]),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return any(stop in text for stop in self._stop)
