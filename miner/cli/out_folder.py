"""Check of the folder for results, before anything is played for it."""

import tempfile
from pathlib import Path

from miner.config.errors import ConfigurationError

ROOM_BYTES = 4 << 20
"""Of an evaluation of 250 games with its pictures and pages, at least."""


def check_out(out: Path) -> None:
    """Raise `ConfigurationError` if results cannot be written to `out`."""
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
        if made:
            out.rmdir()
    except OSError as error:
        raise ConfigurationError(
            f"the folder {out} cannot be written ({error.strerror}): name another folder, or free "
            f"{ROOM_BYTES >> 20} MB there"
        ) from None
