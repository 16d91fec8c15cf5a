"""Mock environment servers in processes of their own, shared by the tests of this folder."""

from collections.abc import AsyncIterator, Iterator

import pytest

from mock_env_server.running import running_server
from tests.mock_env_server.http import set_faults


@pytest.fixture(scope="session")
def faithful_url() -> Iterator[str]:
    """A server whose /step plays other cards than asked, as the real one's does."""
    with running_server("faithful") as server:
        yield server.base_url


@pytest.fixture(scope="session")
def correct_url() -> Iterator[str]:
    """A server whose /step plays the card asked for."""
    with running_server("correct") as server:
        yield server.base_url


@pytest.fixture(scope="session")
def _unreliable() -> Iterator[str]:
    with running_server("correct", "--admin") as server:
        yield server.base_url


@pytest.fixture
async def unreliable_url(_unreliable: str) -> AsyncIterator[str]:
    """A server whose faults a test may set; they are gone after it."""
    yield _unreliable
    await set_faults(_unreliable)
