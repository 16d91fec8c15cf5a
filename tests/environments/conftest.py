"""Mock environment servers in processes of their own, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from mock_env_server.running import running_server


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


async def injected(url: str) -> dict[str, int]:
    """How often the server at `url` did what the plan in force says."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/admin/faults") as response:
        return (await response.json())["injected"]


async def set_faults(url: str, *paths: str, **plan: object) -> None:
    """Have the server at `url` disturb `paths` from now on, as `plan` says; none without a plan."""
    async with aiohttp.ClientSession() as http:
        plan_body = {**plan, **({"paths": paths} if paths else {})}
        async with http.put(f"{url}/admin/faults", json=plan_body) as response:
            assert response.status == 200, await response.text()
