"""Checks of a folder for results, before they are worked for."""

import tempfile
from collections.abc import Callable
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


def check_new(out: Path) -> None:
    """Raise `ConfigurationError` if a model made in `out` would replace something there."""
    check_out(out)
    if out.exists() and any(out.iterdir()):
        raise ConfigurationError(f"{out} is not empty: name another folder, or remove it")


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The model in `folder`, made beside it by `make` if it is not there.

    A kill leaves no half-made model there, and of several makers at once the first one's stays.
    """
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            made = Path(beside) / folder.name
            make(made)
            try:
                made.rename(folder)
            except OSError:
                if not (folder / "config.json").is_file():
                    raise
    return folder
