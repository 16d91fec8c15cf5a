"""Replies without thoughts, for parsers that each have their own marks."""

import re


def without_closed(text: str, closed: re.Pattern[str], end: re.Pattern[str]) -> str:
    """`text` without what `closed` matches, a beginning up to the next `end`.

    Behind the last `end` nothing is looked for: from each beginning to the end of megabytes, which
    a server may send, that would take hours.
    """
    last = max((match.end() for match in end.finditer(text)), default=0)
    return closed.sub("", text[:last]) + text[last:]
