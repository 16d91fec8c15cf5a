"""The container log: one plain, flushed, masked line for each event."""

from __future__ import annotations

import sys

from entrypoint.masking import mask


def say(message: str, *, speaker: str = "miner") -> None:
    """Print one line, prefixed with the speaker's name. Line breaks inside become spaces."""
    sys.stdout.write(mask(f"{speaker}: {' '.join(message.splitlines())}") + "\n")
    sys.stdout.flush()
