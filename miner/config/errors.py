"""The error of settings and arguments that cannot work."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from miner.config.statuses import TrainerStatus


class ConfigurationError(Exception):
    """Settings that cannot work (unknown game, empty URL list): fix them."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """End a program whose settings cannot work with what is wrong, and status 2."""
    try:
        yield
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(TrainerStatus.REFUSED)


def base_folder(path: Path | None) -> Path:
    """`path`, the setting model.path. Raises: `ConfigurationError` if it is not set."""
    if path is None:
        raise ConfigurationError("model.path is not set: name the folder of the base model")
    return path
