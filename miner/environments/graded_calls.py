"""The calls of `/evaluate` under way: a place on the server for each, their ends reported.

Invariants:
* no more than `GRADED_EPISODES_PER_SERVER` calls are under way on a server, over all processes of
  a run: about twice as many deadlock it for good, and where one dies the others have its episodes;
* every call started puts exactly one result or exception into its exchange's inbox, and gives
  its place back when it ends, however it ends.
"""

import asyncio
from typing import Final

from miner.config.contract import GRADED_EPISODES_PER_SERVER
from miner.distributed.launch import world_size
from miner.environments.affinetes import AffinetesClient
from miner.environments.base import EpisodeTask
from miner.environments.errors import InfrastructureError
from miner.environments.graded_endpoint import MODEL_NAME, ChatEndpoint, ChatExchange

# Must not be empty, or the server refuses to play; it is not a secret.
_API_KEY: Final = "unused"


class GradedCalls:
    """The endpoint, the places on each server and the calls under way, of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: ChatEndpoint,
        clients: dict[str, AffinetesClient],
    ) -> None:
        self.loop = loop
        self.endpoint = endpoint
        self._clients = clients
        places = max(1, GRADED_EPISODES_PER_SERVER // world_size())
        self.places = {url: asyncio.Semaphore(places) for url in clients}
        self._calls: set[asyncio.Task[None]] = set()

    async def start(
        self, server: str, task: EpisodeTask, timeout_s: int
    ) -> tuple[ChatExchange, str, asyncio.Task[None]]:
        """Have `server` start `task`, in a place that the caller holds and the call gives back.

        Returns the exchange (its inbox ends with the result or the exception), the URL given to the
        server and the call under way.
        """
        exchange = self.endpoint.open()
        try:
            base_url = await self.endpoint.base_url(exchange, server)
        except BaseException:
            self.endpoint.close_exchange(exchange)
            raise
        call = asyncio.create_task(self._play(server, task, base_url, timeout_s, exchange))
        self._calls.add(call)

        def ended(_: asyncio.Task[None]) -> None:
            # Not in `_play`: a task cancelled before its first step runs no code at all.
            self._calls.discard(call)
            self.places[server].release()
            if call.cancelled():
                gone = f"{server}/evaluate was aborted; its source is closed"
                exchange.inbox.put_nowait(InfrastructureError(gone, server=server))
            elif error := call.exception():
                exchange.inbox.put_nowait(error)

        call.add_done_callback(ended)
        return exchange, base_url, call

    async def _play(
        self, server: str, task: EpisodeTask, base_url: str, timeout_s: int, exchange: ChatExchange
    ) -> None:
        result = await self._clients[server].evaluate(
            task, model=MODEL_NAME, base_url=base_url, api_key=_API_KEY, timeout_s=timeout_s
        )
        exchange.inbox.put_nowait(result)

    async def close(self) -> None:
        """Stop listening and cancel the calls under way."""
        await self.endpoint.close()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
