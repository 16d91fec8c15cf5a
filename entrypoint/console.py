"""The container log: plain, flushed lines without secrets.

Masked are URLs' credentials and queries, and values of variables whose names look secret.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

MASK = "***"
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE
)
_SHORTEST_SECRET = 6  # shorter values ("0", "true") would mask ordinary words
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


def mask_url(url: str) -> str:
    """`url` without user name, password, query (a signed URL's secret) and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host[2]}" if host[1] else host[2]
    masked = urlunsplit((parts.scheme, netloc, parts.path, "", ""))
    return f"{masked}?{MASK}" if parts.query or parts.fragment else masked


def mask(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """`text` with every URL masked and every value of a secret-looking variable replaced."""
    masked = _URL.sub(lambda match: mask_url(match[0]), text)
    for name, value in environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            masked = masked.replace(value, MASK)
    return masked


def print_line(message: str, *, speaker: str = "miner") -> None:
    """Print one line, prefixed with the speaker's name. Line breaks inside become spaces."""
    print_text(f"{speaker}: {' '.join(message.splitlines())}")


def print_text(text: str) -> None:
    """Print lines as they are. A log that takes no more, as on a full disk, ends nothing."""
    with suppress(OSError):
        sys.stdout.write(mask(text) + "\n")
        sys.stdout.flush()
