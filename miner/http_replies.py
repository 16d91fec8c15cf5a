"""What every client of an untrusted HTTP server needs: connections, bounded bodies, excerpts."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from miner.config.errors import ConfigurationError

CONNECT_S: Final = 5.0
HEALTH_S: Final = 5.0
KEEP_ALIVE_S: Final = 4.0
"""uvicorn closes a connection that was idle for 5 s: an older one is not used again."""

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
CHAT_REPLY_LIMIT: Final = 4 << 20
"""Bytes of one chat completion."""
_EXCERPT: Final = 160  # characters


class Connections:
    """Connections to servers that speak JSON; a pool for the event loop that asked last."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> aiohttp.ClientSession:
        """The running event loop's."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                headers={"Content-Type": "application/json"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def complaint(self, health: URL) -> str:
        """Why nobody can play on the server whose health page this is, in a few words; "" where
        somebody answers.

        A server that has no such page is there all the same; 5xx is a proxy without its server.
        """
        patience = aiohttp.ClientTimeout(total=HEALTH_S)
        try:
            async with self.here().get(health, timeout=patience, allow_redirects=False) as response:
                return f"HTTP {response.status}" if response.status >= 500 else ""
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return describe(error)

    async def close(self) -> None:
        """Close them (idempotent)."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()


def chat_base_url(url: str) -> str:
    """What `/chat/completions` is appended to: `url`, with /v1 if it names a host only.

    Raises: `ConfigurationError` for what is no URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{url!r} is no URL of a model endpoint: expected one like http://localhost:30000/v1"
        )
    base = url.rstrip("/").removesuffix("/chat/completions")
    return base if urlsplit(base).path else f"{base}/v1"


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None as soon as it is known to be longer than `limit` bytes."""
    if (response.content_length or 0) > limit:
        response.close()
        return None
    chunks: list[bytes] = []
    left = limit
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            response.close()
            return None
    return b"".join(chunks)


def describe(error: BaseException) -> str:
    """A connection's error in a few words."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {excerpt(str(error))}" if str(error) else type(error).__name__


def excerpt(text: str) -> str:
    """First line of a server's text, bounded and with control characters escaped."""
    line = text.strip().split("\n", 1)[0]
    return repr(line if len(line) <= _EXCERPT else line[:_EXCERPT] + "...")
