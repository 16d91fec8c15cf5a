"""Parts of every client of an untrusted HTTP server: connections, bounded bodies, excerpts."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from miner.config.errors import ConfigurationError

logger = logging.getLogger(__name__)

CONNECT_S: Final = 5.0
HEALTH_S: Final = 5.0
HEALTH_PAUSE_S: Final = 0.2
"""Between two questions to a server that is waited for."""
KEEP_ALIVE_S: Final = 4.0
"""uvicorn closes a connection that was idle for 5 s: an older one is not used again."""

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
BASE_URL_VARIABLE: Final = "OPENAI_BASE_URL"
CHAT_REPLY_LIMIT: Final = 4 << 20
"""Bytes of one chat completion."""
_EXCERPT: Final = 160  # characters
_OTHER_PAGE: Final = (301, 302, 303, 307, 308, 404, 405)
"""Statuses of a page that a server does not have, or has elsewhere."""

_T = TypeVar("_T")


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

    async def close(self) -> None:
        """Close them (idempotent)."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()


def chat_base_url(url: str) -> str:
    """The URL that `/chat/completions` is appended to: `url`, with /v1 if it names a host only.

    Raises: `ConfigurationError` for what is not a URL, and for one with credentials.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "the URL of a model endpoint has a user name or password in it, which files and "
            f"messages would show: leave it out, and set {API_KEY_VARIABLE} (for a player with "
            f"{BASE_URL_VARIABLE})"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{url!r} is not a URL of a model endpoint: expected one like http://localhost:30000/v1"
        )
    base = url.rstrip("/").removesuffix("/chat/completions")
    return base if urlsplit(base).path else f"{base}/v1"


def player_key(url: str) -> str | None:
    """The key for a player's endpoint: it is sent to the server of `BASE_URL_VARIABLE` alone, since
    other players' endpoints may be strangers'. Raises: as `chat_base_url`."""
    asked, key = URL(chat_base_url(url)), os.environ.get(API_KEY_VARIABLE)
    if not key:
        return None
    with suppress(ValueError):  # where the variable holds no URL
        own = URL(os.environ.get(BASE_URL_VARIABLE, ""))
        if (own.scheme, own.host, own.port) == (asked.scheme, asked.host, asked.port):
            return key
    logger.warning(
        "%s is not sent to %s: %s names another", API_KEY_VARIABLE, asked, BASE_URL_VARIABLE
    )
    return None


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


def printable(text: str) -> str:
    """`excerpt` without quotes, for a name that a server gives."""
    return excerpt(text)[1:-1]


class JsonServer:
    """Client of one untrusted server that answers in JSON. Usable from any event loop.

    A subclass makes in `_away` the error for a server that is unreachable, late or failing, which a
    retry may cure, and in `_broken` the error for one that is something else.

    Args:
        url: base URL, `http://host:port`.
        connections: those of another client, which closes them; None: separate ones.

    Attributes:
        what: it is, in messages.
        too_large_is_away: true if a reply without end is taken for a fault that passes.
        redirects: true if it may send its clients elsewhere.
    """

    what: ClassVar[str]
    too_large_is_away: ClassVar[bool] = False
    redirects: ClassVar[bool] = False

    def __init__(self, url: str, connections: Connections | None = None) -> None:
        self.url = url.rstrip("/")
        self._connections = connections or Connections()

    async def health_error(self) -> str:
        """Reason why the server is unusable, in a few words; "" where it answers.

        A server without /health is there all the same; 5xx is a proxy without its server.
        """
        patience = aiohttp.ClientTimeout(total=HEALTH_S)
        try:
            async with self._connections.here().get(
                self._at("health"), timeout=patience, allow_redirects=False
            ) as response:
                return f"HTTP {response.status}" if response.status >= 500 else ""
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeError) as error:
            return describe(error)

    async def wait_until_healthy(
        self,
        seconds: float,
        *,
        pause_s: float = HEALTH_PAUSE_S,
        alive: Callable[[], object] = lambda: None,
    ) -> str:
        """Ask for its health until it answers, or `seconds` are over.

        Args:
            alive: called after each question in vain; what it raises ends the wait.

        Returns: the last health error, "" where it answers.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (error := await self.health_error()) and clock() < end:
            alive()
            await asyncio.sleep(pause_s)
        return error

    async def close(self) -> None:
        """Close the connections (idempotent)."""
        await self._connections.close()

    def _away(self, message: str) -> Exception:
        raise NotImplementedError

    def _broken(self, message: str) -> Exception:
        raise NotImplementedError

    def _at(self, path: str) -> str:
        return f"{self.url}/{path}"

    async def _request(
        self,
        method: Literal["GET", "POST"],
        path: str,
        data: bytes | None = None,
        *,
        limit: int,
        patience: aiohttp.ClientTimeout,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The body of a reply with status 200, of at most `limit` bytes."""
        try:
            async with self._connections.here().request(
                method, self._at(path), data=data, timeout=patience, headers=headers,
                allow_redirects=self.redirects,
            ) as response:  # fmt: skip
                body = await read_bounded(response, limit)
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeError) as error:
            late = isinstance(error, TimeoutError)
            how = "did not answer in time" if late else "failed"
            bound = f" after {patience.total:g} s" if late and patience.total else ""
            raise self._away(
                f"{self.url}/{path} {how} ({describe(error)}{bound}); check that {self.what} is "
                "running and reachable from here"
            ) from error
        if body is None:
            kind = self._away if self.too_large_is_away else self._broken
            raise kind(f"{self.url}/{path} sent more than {limit:,} bytes; reply dropped")
        if response.status != 200:
            raise self._refused(path, response.status, body)
        return body

    def _refused(self, path: str, status: int, body: bytes) -> Exception:
        return self._refusal(path, status, excerpt(body[:400].decode("utf-8", "replace")))

    def _refusal(self, path: str, status: int, detail: str, wanted: int = 200) -> Exception:
        if status >= 500 or status in (408, 429):
            return self._away(f"{self.url}/{path} failed with HTTP {status}: {detail}")
        elsewhere = f"; is this the base URL of {self.what}?" if status in _OTHER_PAGE else ""
        return self._broken(
            f"{self.url}/{path} answered HTTP {status} where {wanted} was expected: {detail}"
            f"{elsewhere}"
        )

    def _decode(self, kind: type[_T], body: bytes | msgspec.Raw, path: str) -> _T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise self._broken(
                f"{self.url}/{path} answered in another shape than {self.what}: {error}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._away(
                f"{self.url}/{path} sent a broken reply of {len(bytes(body)):,} bytes: {error}: "
                f"{excerpt(bytes(body)[:400].decode('utf-8', 'replace'))}; is this the base URL of "
                f"{self.what}?"
            ) from error
