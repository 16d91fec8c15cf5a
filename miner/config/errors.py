"""The error of settings and arguments that cannot work."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class ConfigurationError(Exception):
    """Settings that cannot work (unknown game, empty URL list): fix them."""


@contextmanager
def one_sentence() -> Iterator[None]:
    """End a program whose settings cannot work with what is wrong, and status 2."""
    try:
        yield
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
