"""Limit of the episodes that one server plays at once: as set, or as the server has shown."""

import asyncio
import logging

logger = logging.getLogger(__name__)


class Places:
    """Places of one server. Within one event loop.

    Invariant: never are more taken than `limit` was at that time; `give` follows every `take`.

    Args:
        url: of the server, for the message.
        limit: sessions at once at most.
    """

    def __init__(self, url: str, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._url = url
        self._freed = asyncio.Condition()

    async def take(self) -> None:
        """Wait for a place and take it."""
        async with self._freed:
            await self._freed.wait_for(lambda: self.taken < self.limit)
            self.taken += 1

    async def give(self) -> None:
        """Give one back."""
        async with self._freed:
            self.taken -= 1
            self._freed.notify_all()  # one that is cancelled at once would keep the only notice

    def lower(self, limit: int) -> None:
        """The server takes no more than this; episodes beyond it wait from now on."""
        limit = max(1, limit)
        if limit < self.limit:
            logger.warning(
                "%s takes only %d of the %d sessions at once that this process plans for: other "
                "episodes wait for a place",
                self._url, limit, self.limit,
            )  # fmt: skip
            self.limit = limit
