"""Servers in a thread of the test's own process, such as the mock environment server."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import uvicorn

from mock_env_server.serving import bind, configuration, url_of
from mock_env_server.settings import ServerSettings


@contextmanager
def in_thread(server: uvicorn.Server, port: int = 0) -> Iterator[str]:
    """`server` on a local port, by default a free one, until the context is left; yields its base
    URL."""
    sock = bind("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield url_of(sock)
    finally:
        server.should_exit = True
        thread.join(15)


def serve_in_thread(settings: ServerSettings | None = None) -> AbstractContextManager[str]:
    """A mock environment server."""
    return in_thread(uvicorn.Server(configuration(settings or ServerSettings())))
