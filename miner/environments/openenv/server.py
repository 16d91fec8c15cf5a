"""The HTTP side of an OpenEnv server, and its sessions. Imports nothing of the package `openenv`.

Invariant: a server's answer is untrusted: bounded before it is parsed, checked while it is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from yarl import URL

from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.openenv.session import Session
from miner.environments.openenv.wire import METADATA, REPLY_LIMIT, SCHEMAS
from miner.http_replies import Connections, describe, excerpt, read_bounded

_CONNECT_S: Final = 10.0

_T = TypeVar("_T")


class OpenEnvServer:
    """Client of one server. Usable from any event loop; one connection pool per loop.

    Args:
        url: base URL, `http://host:port`.
        reply_seconds: longest wait for any one reply.
    """

    def __init__(self, url: str, *, reply_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._base = URL(self.url)
        self._reply_seconds = reply_seconds
        self._connections = Connections()

    async def action_schema(self) -> dict[str, Any]:
        """JSON Schema of the actions. Raises: `InfrastructureError`, `ProtocolError`."""
        return self._decode(SCHEMAS, await self._get("schema"), "schema").action

    async def name(self) -> str:
        """What the environment calls itself; its URL where it has no name."""
        try:
            return self._decode(METADATA, await self._get("metadata"), "metadata").name
        except ProtocolError:
            return self.url

    async def connect(self) -> Session:
        """A session of its own. Raises: `InfrastructureError`, `ProtocolError`.

        A server that is full takes the connection and says so to whatever is asked first.
        """
        try:
            async with asyncio.timeout(_CONNECT_S):
                socket = await self._connections.here().ws_connect(
                    self._base / "ws", max_msg_size=REPLY_LIMIT
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status >= 500 or error.status in (408, 429):
                raise self._away("ws", f"failed with HTTP {error.status}") from error
            raise ProtocolError(
                f"{self.url}/ws answered HTTP {error.status}: is this the base URL of an OpenEnv "
                "server?",
                server=self.url,
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away("ws", f"could not be connected to ({describe(error)})") from error
        return Session(socket, self.url, self._reply_seconds)

    async def complaint(self) -> str:
        """See `Connections.complaint`."""
        return await self._connections.complaint(self._base / "health")

    async def close(self) -> None:
        """Close the connections (idempotent)."""
        await self._connections.close()

    async def _get(self, path: str) -> bytes:
        patience = aiohttp.ClientTimeout(total=self._reply_seconds, sock_connect=_CONNECT_S)
        try:
            async with self._connections.here().get(
                self._base / path, timeout=patience
            ) as response:
                body = await read_bounded(response, REPLY_LIMIT)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(path, f"failed ({describe(error)})") from error
        if response.status >= 500:
            raise self._away(path, f"failed with HTTP {response.status}")
        if response.status != 200:
            raise ProtocolError(
                f"{self.url}/{path} answered HTTP {response.status} where 200 was expected: is "
                "this the base URL of an OpenEnv server?",
                server=self.url,
            )
        if body is None:
            raise ProtocolError(
                f"{self.url}/{path} sent more than {REPLY_LIMIT:,} bytes; dropped", server=self.url
            )
        return body

    def _decode(self, decoder: msgspec.json.Decoder[_T], body: bytes, path: str) -> _T:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(
                f"{self.url}/{path} answered in another shape than an OpenEnv server "
                f"({error}): {excerpt(body[:200].decode('utf-8', 'replace'))}",
                server=self.url,
            ) from error

    def _away(self, path: str, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self.url}/{path} {what}: check that the OpenEnv server is running and reachable "
            "from here",
            server=self.url,
        )
