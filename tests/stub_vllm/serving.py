"""Running the stub: in a thread of this process, or as `vllm serve` would run."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import uvicorn

from tests.served import in_thread
from tests.stub_vllm.app import StubVllm


def server_of(stub: StubVllm) -> uvicorn.Server:
    """A server of one stub; what still hangs at its end is given up at once."""
    config = uvicorn.Config(stub.app, log_level="critical", timeout_graceful_shutdown=0)
    return uvicorn.Server(config)


@contextmanager
def stub_in_thread(stub: StubVllm, port: int = 0) -> Iterator[str]:
    """Serve `stub` on a local port; yields its base URL and closes the stub at the end."""
    with closing(stub), in_thread(server_of(stub), port) as url:
        yield url
