"""Environment servers, and the choice of the one that plays the next episode.

Invariant: the number of open episodes per server is exact as long as each `pick` is followed by
one `release`; a server that just failed is used again only after a pause, or if no other is left,
and one that is away comes last of all.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from yarl import URL

from miner.config.errors import ConfigurationError
from miner.environments.base import Environment, EpisodeTask
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.http_replies import JsonServer

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PAUSE_BY_LOSS = 10.0
"""Of one that hangs, perhaps while /health answers: a tenth of the time is lost to it."""


def check_server_urls(urls: Sequence[str]) -> tuple[str, ...]:
    """`urls` without repetitions and trailing slashes. Raises: `ConfigurationError`."""
    if not urls:
        raise ConfigurationError(
            "no environment server is given; set ENVIRONMENT_SERVER_URLS to a list such as "
            "http://10.0.0.5:8000,http://10.0.0.6:8000, or start one with "
            "`python -m mock_env_server`, or choose the builtin channel"
        )
    return tuple(dict.fromkeys(_check_url(url) for url in urls))


def _check_url(text: str) -> str:
    try:
        url = URL(text.strip())
        port = url.port  # an impossible port raises only here
    except ValueError:
        url, port = URL(), None
    if url.scheme not in ("http", "https") or not url.host or not port:
        shown = f"http://{text}" if "://" not in text and "@" not in text else "http://host:8000"
        raise ConfigurationError(
            f"environment server {_without_credentials(text)!r} is not a URL of the form "
            f"http://host:port; did you mean {shown!r}?"
        )
    if url.user or url.password or url.query_string or url.fragment:
        raise ConfigurationError(
            f"environment server {_without_credentials(text)!r} carries credentials, a query or a "
            "fragment; give only http://host:port"
        )
    return str(url).rstrip("/")


def _without_credentials(text: str) -> str:
    scheme, separator, rest = text.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]


@dataclass(slots=True)
class _Load:
    open_episodes: int = 0
    pause_s: float = 0.0
    rests_until: float = 0.0
    away: bool = False


class ServerPool:
    """Spreads episodes over servers, least busy first."""

    def __init__(self, urls: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._loads = {url: _Load() for url in check_server_urls(urls)}
        self._clock = clock

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers, in the order given."""
        return tuple(self._loads)

    def pick(self, avoid: Collection[str] = (), limits: Mapping[str, int] | None = None) -> str:
        """Take a place on the least busy server; those resting, of `avoid` or away come last.

        Args:
            limits: episodes at once that a server takes, where they differ.
        """
        now = self._clock()

        def cost(item: tuple[str, _Load]) -> tuple[bool, bool, bool, float]:
            url, load = item
            busy = load.open_episodes / (limits or {}).get(url, 1)
            return load.away, url in avoid, load.rests_until > now, busy

        url, load = min(self._loads.items(), key=cost)
        load.open_episodes += 1
        return url

    def release(self, url: str) -> None:
        """Give back the place of one `pick`."""
        self._loads[url].open_episodes -= 1

    def report_failure(self, url: str, took_s: float = 0.0) -> None:
        """Rest a server: 1 s after its first failure, twice as long after each further one, up to a
        minute, but ten times as long as it was waited for in vain."""
        load = self._loads[url]
        if load.rests_until > self._clock():
            return
        load.pause_s = min(_LONGEST_PAUSE_S, 2 * load.pause_s or _FIRST_PAUSE_S)
        load.rests_until = self._clock() + max(load.pause_s, _PAUSE_BY_LOSS * took_s)

    def report_presence(self, url: str, *, there: bool) -> None:
        """Note whether a server answers; one that comes back need not rest any more."""
        load = self._loads[url]
        if there and load.away:
            self.report_success(url)
        load.away = not there

    def report_success(self, url: str) -> None:
        """A played-out episode ends a server's rest."""
        load = self._loads[url]
        load.pause_s = load.rests_until = 0.0


@dataclass(slots=True)
class ChannelStats:
    """Running counts of a source over all episodes: whether its servers play what is asked.

    Attributes:
        asked: actions sent whose effect could be observed.
        applied: those of them that the game really made.
        disagreements: replies that the server judged otherwise than our copy of its parser.
    """

    asked: int = 0
    applied: int = 0
    disagreements: int = 0

    def count(self, asked: int, applied: int) -> None:
        """Record the action asked for and the one the game made."""
        self.asked += 1
        self.applied += asked == applied

    @property
    def applied_rate(self) -> float | None:
        """Share of actions that were applied as asked; None before the first."""
        return self.applied / self.asked if self.asked else None


class EnvironmentServer(JsonServer):
    """Client of an environment server: what fails there is never a score."""

    def _away(self, message: str) -> Exception:
        return InfrastructureError(message, server=self.url)

    def _broken(self, message: str) -> Exception:
        return ProtocolError(message, server=self.url)


C = TypeVar("C", bound=EnvironmentServer)


class OnServers(Generic[C]):
    """Base of sources whose episodes are played on servers.

    Args:
        clients: by base URL as `check_server_urls` gives it.
    """

    def __init__(self, clients: Mapping[str, C]) -> None:
        self.stats = ChannelStats()
        self.pool = ServerPool(tuple(clients))
        self.clients = dict(clients)

    @property
    def applied_rate(self) -> float | None:
        return self.stats.applied_rate

    @property
    def servers(self) -> tuple[str, ...]:
        return self.pool.urls

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        pass

    async def health_error(self, server: str) -> str:
        error = await self.clients[server].health_error()
        self.pool.report_presence(server, there=not error)
        return error

    async def close(self) -> None:
        """Close the connections (idempotent)."""
        for client in self.clients.values():
            await client.close()


class OnServer:
    """Base of environments that play on one server: its place, and its faults.

    Args:
        server: base URL, just picked from `pool`.
    """

    def __init__(self, pool: ServerPool, server: str) -> None:
        self.server = server
        self._pool = pool
        self._released = False

    def _release(self) -> None:
        """Give the place back (idempotent)."""
        if not self._released:
            self._released = True
            self._pool.release(self.server)

    @contextmanager
    def _reporting(self, *, timed: bool = True) -> Iterator[None]:
        """Rest the server after a fault.

        Args:
            timed: false where most of the time inside is waited for a place.
        """
        began = time.monotonic()
        try:
            yield
        except (InfrastructureError, ProtocolError):
            took_s = time.monotonic() - began if timed else 0.0
            self._pool.report_failure(self.server, took_s)
            raise

    def _protocol_error(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self.server} {what}", server=self.server)
