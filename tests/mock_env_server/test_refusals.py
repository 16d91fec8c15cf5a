"""What this server refuses and the real one does not; all else stands in the recordings."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import pytest

from mock_env_server.app import MAX_BODY_BYTES
from tests.mock_env_server.http import post
from tests.served import serve_in_thread


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serve_in_thread() as url:
        yield url


async def test_a_game_that_only_the_real_server_has(server: str) -> None:
    status, document = await post(server, "/reset", {"task_id": 1_100_000_000, "seed": 0})
    assert status == 500
    assert "1100000000" in document["detail"]


async def test_a_body_beyond_the_bound(server: str) -> None:
    async with aiohttp.ClientSession(server) as http:
        async with http.post("/step", data=b"x" * (MAX_BODY_BYTES + 2**20)) as response:
            assert response.status == 413
        async with http.get("/health") as response:
            assert await response.json() == {"status": "ok"}
