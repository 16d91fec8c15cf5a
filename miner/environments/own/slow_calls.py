"""Calls of the user's functions that do not return."""

import logging
import time
from threading import Timer, get_ident

logger = logging.getLogger(__name__)

SECONDS = 60.0


class SlowCalls:
    """Around each call of a function: warns of one that takes longer than `SECONDS`, within twice
    that time.

    Nothing can end it, and the run waits for it. All calls share one timer.

    Args:
        name: of the function, as the user knows it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._began: dict[int, float] = {}  # of the calls that have not returned, by thread
        self._timer: Timer | None = None

    def __enter__(self) -> None:
        self._began[get_ident()] = time.monotonic()
        if self._timer is None:
            self._look_later()

    def __exit__(self, *_: object) -> None:
        self._began.pop(get_ident(), None)

    def look(self) -> None:
        """Warn of a call that takes long already, or look again while there are calls."""
        self._timer = None
        running = list(self._began.values())
        if any(time.monotonic() - began >= SECONDS for began in running):
            logger.warning(
                "%s has not returned in %.0f s: the run waits for it", self._name, SECONDS
            )
        elif running:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = Timer(SECONDS, self.look)
        self._timer.daemon = True
        self._timer.start()
