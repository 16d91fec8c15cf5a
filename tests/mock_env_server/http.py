"""Talking to a server under test."""

from typing import Any

import aiohttp


async def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and document of one POST on a connection of its own."""
    async with aiohttp.ClientSession(url) as http, http.post(path, json=body) as response:
        return response.status, await response.json()


async def result(url: str, path: str, **arguments: Any) -> dict[str, Any]:
    """`result` of one call that has to succeed."""
    status, document = await post(url, path, arguments)
    assert status == 200, document
    assert document["status"] == "success"
    assert document["error"] is None
    return document["result"]


async def new_episode(url: str, task_id: int = 0, seed: int = 0, opponent: str = "random") -> str:
    """Id of a fresh episode."""
    reset = await result(url, "/reset", task_id=task_id, seed=seed, opponent=opponent)
    return reset["episode_id"]


async def evaluate(url: str, base_url: str, **arguments: Any) -> dict[str, Any]:
    """`result` of a graded episode of Goofspiel with 8 cards."""
    defaults = {"task_id": 0, "seed": 0, "opponent": "random", "api_key": "k", "model": "m"}
    return await result(url, "/evaluate", **{**defaults, "base_url": base_url, **arguments})


async def injected(url: str) -> dict[str, int]:
    """Counts of the faults that the plan in force has injected."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/admin/faults") as response:
        return (await response.json())["injected"]


async def set_faults(url: str, *paths: str, **plan: object) -> None:
    """Disturb `paths` (default: all of the game) by `plan` from now on; no plan ends all faults."""
    async with aiohttp.ClientSession() as http:
        plan_body = {**plan, **({"paths": paths} if paths else {})}
        async with http.put(f"{url}/admin/faults", json=plan_body) as response:
            assert response.status == 200, await response.text()
