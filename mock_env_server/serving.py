"""Running the application under uvicorn: the socket, the readiness line, the graceful end."""

import signal
import socket
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mock_env_server.app import create_app
from mock_env_server.settings import ServerSettings

GRACE_S = 3
"""Seconds that requests in progress get after SIGTERM."""


class Protocol(HttpToolsProtocol):
    """HTTP connections whose requests can close them (for faults that drop the connection)."""

    def on_message_begin(self) -> None:
        """Put the transport where the application finds it."""
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


def configuration(settings: ServerSettings) -> uvicorn.Config:
    """The application as uvicorn has to serve it."""
    return uvicorn.Config(
        create_app(settings),
        http=Protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
    )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises: OSError when the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    """Base URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AnnouncingServer(uvicorn.Server):
    """A server that prints one line when it accepts requests."""

    def __init__(self, settings: ServerSettings, sock: socket.socket) -> None:
        super().__init__(configuration(settings))
        self._line = f"mock environment server listening on {url_of(sock)} (mode {settings.mode})"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then announce it."""
        await super().startup(sockets)
        print(self._line, flush=True)


def run(settings: ServerSettings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then finish requests in progress and return.

    Raises: OSError when the address cannot be bound.
    """
    sock = bind(host, port)
    # uvicorn raises the signal again once it has shut down; without this the exit status reports
    # "killed by SIGTERM" after a shutdown that was in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    AnnouncingServer(settings, sock).run(sockets=[sock])


def _ignore(number: int, frame: FrameType | None) -> None:
    return
