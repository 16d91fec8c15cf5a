"""Chat endpoints for the tests of /evaluate."""

from collections.abc import AsyncIterator

import pytest

from tests.mock_env_server.chat_stub import ChatStub, chat_stub


@pytest.fixture
async def model() -> AsyncIterator[ChatStub]:
    """Chat endpoints whose replies the test chooses."""
    async with chat_stub() as stub:
        yield stub
