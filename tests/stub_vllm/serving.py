"""Running the stub: in a thread of this process, or as `vllm serve` would run."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.stub_vllm.app import StubVllm


def bind(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A bound socket; port 0 takes a free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    return sock


def server_of(stub: StubVllm) -> uvicorn.Server:
    """A server of one stub; what still hangs at its end is given up at once."""
    config = uvicorn.Config(stub.app, log_level="critical", timeout_graceful_shutdown=0)
    return uvicorn.Server(config)


@contextmanager
def stub_in_thread(stub: StubVllm, port: int = 0) -> Iterator[str]:
    """Serve `stub` on a local port; yields its base URL and closes the stub at the end."""
    server, sock = server_of(stub), bind(port=port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    sock.listen()
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()
        stub.close()
