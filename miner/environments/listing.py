"""The list of legal actions in a server's text, part of the wire format of every game.

Invariant: total and bounded; a text without a list gives an empty mapping.
"""

import re
from typing import Final

HEADING: Final = "Legal Actions:\n"
_LINE = re.compile(r"[ \t]*(\d{1,9}) -> (.*)")


def parse_listing(text: str) -> dict[int, str]:
    """Label of each action id listed after the last `Legal Actions:`, in the order listed."""
    _, found, listed = text.rpartition(HEADING)
    labels: dict[int, str] = {}
    if found:
        for line in listed.split("\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                break
            labels[int(match[1])] = match[2]
    return labels
