"""Parsers of replies: the grader's parser and the /step parser.

The grader's rules in their order: think text is dropped; a reply that is only a number must be a
legal id; else the lowest legal id that is a word of the reply; else the first legal action
whose label is in the reply. Both parsers are total: any text gives an id or None.
"""

import re
from collections.abc import Mapping, Sequence

from miner.thoughts import without_closed

_CLOSED_THINK = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_OPEN_THINK = re.compile(r"<think>", re.IGNORECASE)
_CLOSE_THINK = "</think>"
_CLOSE = re.compile(_CLOSE_THINK, re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n")
_NUMBER = re.compile(r"\d+")
_NUMBER_WORD = re.compile(r"\b\d+\b")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]")


def clean_reply(text: str) -> str:
    """A reply as the grader keeps it in the conversation: without think text.

    Dropped are closed think blocks, everything after an unclosed opening tag, everything before
    the last closing tag, surplus blank lines and outer white space.
    """
    text = without_closed(text.strip(), _CLOSED_THINK, _CLOSE)
    text = _OPEN_THINK.split(text, maxsplit=1)[0]
    text = text.rsplit(_CLOSE_THINK, maxsplit=1)[-1]
    return _BLANK_LINES.sub("\n\n", text).strip()


def parse_graded_reply(text: str, legal: Sequence[int], labels: Mapping[int, str]) -> int | None:
    """The legal action id that the grader reads from a reply, None if it reads none.

    Args:
        text: the model's whole reply.
        legal: legal action ids of the turn.
        labels: label of each legal id, as shown in the turn's prompt.
    """
    answer = clean_reply(text)
    if _NUMBER.fullmatch(answer):
        number = _integer(answer)
        return number if number in legal else None
    words = set(_NUMBER_WORD.findall(answer))
    named = [action for action in legal if str(action) in words]
    return min(named) if named else _labelled_action(answer.lower(), legal, labels)


def parse_step_action(text: str) -> int | None:
    """The first number anywhere in `text` (think text included), as /step reads it.

    Whether it is legal is for the caller to check.
    """
    match = _NUMBER.search(text)
    return None if match is None else _integer(match[0])


def _labelled_action(answer: str, legal: Sequence[int], labels: Mapping[int, str]) -> int | None:
    """The first action whose label is in `answer`, verbatim or by its letters and digits."""
    squeezed = _NOT_ALPHANUMERIC.sub("", answer)
    for action in legal:
        name = labels[action].lower()
        key = _NOT_ALPHANUMERIC.sub("", name)
        if name in answer or (key and key in squeezed):
            return action
    return None


def _integer(digits: str) -> int | None:
    """The number that `digits` spells; None beyond what Python converts."""
    try:
        return int(digits)
    except ValueError:
        return None
