"""A server of each file's `SETTINGS`, and chat endpoints for the tests of /evaluate."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.mock_env_server.chat_stub import ChatStub, chat_stub
from tests.served import serve_in_thread


@pytest.fixture
async def model() -> AsyncIterator[ChatStub]:
    """Chat endpoints whose replies the test chooses."""
    async with chat_stub() as stub:
        yield stub


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with serve_in_thread(getattr(request.module, "SETTINGS", None)) as url:
        yield url
