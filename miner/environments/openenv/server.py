"""The HTTP side of an OpenEnv server, and its sessions. Imports nothing of the package `openenv`.

Invariant: a server's answer is untrusted: bounded before it is parsed, checked while it is.
"""

import asyncio
from typing import Any, Final

import aiohttp

from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.openenv.codec import all_fields
from miner.environments.openenv.session import Session
from miner.environments.openenv.wire import REPLY_LIMIT, Metadata, Schemas
from miner.environments.servers import EnvironmentServer
from miner.http_replies import describe, printable

_CONNECT_S: Final = 10.0


class OpenEnvServer(EnvironmentServer):
    """Client of one server. Usable from any event loop; one connection pool per loop.

    Args:
        url: base URL, `http://host:port`.
        reply_seconds: longest wait for any one reply.
    """

    what = "an OpenEnv server"
    redirects = True

    def __init__(self, url: str, *, reply_seconds: float = 30.0) -> None:
        super().__init__(url)
        self._reply_seconds = reply_seconds
        self._fields: frozenset[str] | None = None

    async def action_schema(self) -> dict[str, Any]:
        """JSON Schema of the actions. Raises: `InfrastructureError`, `ProtocolError`."""
        schema = self._decode(Schemas, await self._get("schema"), "schema").action
        self._fields = all_fields(schema)
        return schema

    async def name(self) -> str:
        """Name of the environment; its URL where it has no name."""
        try:
            return printable(self._decode(Metadata, await self._get("metadata"), "metadata").name)
        except (InfrastructureError, ProtocolError):
            return self.url

    async def connect(self) -> Session:
        """A new session. Raises: `InfrastructureError`, `ProtocolError`.

        A server that is full accepts the connection and refuses the first request.
        """
        try:
            async with asyncio.timeout(_CONNECT_S):
                socket = await self._connections.here().ws_connect(
                    self._at("ws"), max_msg_size=REPLY_LIMIT
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 101:
                raise self._broken(
                    f"{self.url}/ws answered what is no WebSocket handshake ({error.message}); is "
                    f"this the base URL of {self.what}?"
                ) from error
            raise self._refusal("ws", error.status, error.message, wanted=101) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(
                f"{self.url}/ws could not be connected to ({describe(error)}): check that "
                f"{self.what} is running and reachable from here"
            ) from error
        return Session(socket, self.url, self._reply_seconds, self._fields)

    async def _get(self, path: str) -> bytes:
        patience = aiohttp.ClientTimeout(total=self._reply_seconds, sock_connect=_CONNECT_S)
        return await self._request("GET", path, limit=REPLY_LIMIT, patience=patience)
