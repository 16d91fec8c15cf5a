"""What every client of an untrusted HTTP server needs: bounded bodies, harmless excerpts."""

from __future__ import annotations

import aiohttp


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


def excerpt(text: str, length: int = 160) -> str:
    """First line of a server's text, bounded and with control characters escaped."""
    line = text.strip().split("\n", 1)[0]
    return repr(line if len(line) <= length else line[:length] + "...")
