"""The mock environment server in a thread of the test's own process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from mock_env_server.serving import bind, configuration, url_of
from mock_env_server.settings import ServerSettings


@contextmanager
def serve_in_thread(settings: ServerSettings | None = None) -> Iterator[str]:
    """A server on a free local port until the context is left; yields its base URL."""
    server = uvicorn.Server(configuration(settings or ServerSettings()))
    sock = bind("127.0.0.1", 0)
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
