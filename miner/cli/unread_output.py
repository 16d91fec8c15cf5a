"""Output that nobody reads any more: the work behind it continues, or ends with all it has."""

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Self, cast


class UnreadStream(io.TextIOWrapper):
    """A stream that drops what is written to a closed pipe or terminal, where others raise."""

    @classmethod
    def of(cls, stream: io.TextIOWrapper) -> Self:
        """A stream in the place of `stream`, which stays as it is."""
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        return cls(
            cast(BinaryIO, raw) if stream.write_through else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        with self._dropped_if_unread():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropped_if_unread():
            super().flush()

    @contextmanager
    def _dropped_if_unread(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def continue_unread() -> None:
    """Let work continue where nobody reads its output any more, and end as by SIGTERM, with all
    that was done kept, where the terminal is closed (not under nohup)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, UnreadStream.of(stream))
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
