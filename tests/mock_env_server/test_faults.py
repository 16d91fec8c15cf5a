"""Every fault does what it says, where it is told to, and again when it is repeated."""

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mock_env_server.faults import GAME_PATHS, FaultKind, FaultPlan
from mock_env_server.settings import ServerSettings
from tests.mock_env_server.http import injected, new_episode, post, result, set_faults
from tests.served import serve_in_thread

SETTINGS = ServerSettings(admin=True)


async def always(server: str, kind: FaultKind, **plan: Any) -> None:
    await set_faults(server, rates={kind: 1.0}, **plan)


async def steps_taken(server: str, episode_id: str) -> int:
    """Steps of an episode, asked when nothing is disturbed."""
    await set_faults(server)
    return (await result(server, "/state", episode_id=episode_id))["info"]["step_count"]


async def raw_step(server: str, episode_id: str) -> tuple[int, bytes]:
    body = {"action": "0", "episode_id": episode_id}
    async with (
        aiohttp.ClientSession(server) as http,
        http.post("/step", json=body) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize(
    ("kind", "status"),
    [(FaultKind.HTTP_500, 500), (FaultKind.HTTP_429, 429), (FaultKind.HTTP_503, 503)],
)
async def test_status_faults_answer_and_do_nothing(
    server: str, kind: FaultKind, status: int
) -> None:
    episode_id = await new_episode(server)
    await always(server, kind)
    got, body = await raw_step(server, episode_id)
    assert got == status
    assert json.loads(body).keys() == {"detail"}
    assert await steps_taken(server, episode_id) == 0


@pytest.mark.parametrize(
    ("kind", "steps"), [(FaultKind.DROP_REQUEST, 0), (FaultKind.DROP_REPLY, 1)]
)
async def test_dropped_connections(server: str, kind: FaultKind, steps: int) -> None:
    episode_id = await new_episode(server)
    await always(server, kind)
    with pytest.raises(aiohttp.ClientConnectionError):
        await raw_step(server, episode_id)
    assert await steps_taken(server, episode_id) == steps


async def test_truncated_json_is_the_first_half_of_the_answer(server: str) -> None:
    episode_id = await new_episode(server)
    await always(server, FaultKind.TRUNCATED_JSON)
    status, body = await raw_step(server, episode_id)
    assert status == 200
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Invalid"):
        json.loads(body)
    await set_faults(server)
    state = await post(server, "/state", {"episode_id": episode_id})
    whole = json.dumps(state[1], separators=(",", ":")).encode()
    assert whole.startswith(body)
    assert len(body) == len(whole) // 2


async def test_garbage_is_not_json(server: str) -> None:
    episode_id = await new_episode(server)
    await always(server, FaultKind.GARBAGE_JSON)
    status, body = await raw_step(server, episode_id)
    assert status == 200
    with pytest.raises(ValueError, match=r"Expecting|decode"):
        json.loads(body)
    assert await steps_taken(server, episode_id) == 1


def wrongly_typed(sound: Any, spoilt: Any, path: str = "") -> list[str]:
    """Paths of the outermost values whose types differ."""
    if type(sound) is not type(spoilt):
        return [path]
    if not isinstance(sound, dict):
        return []
    assert sound.keys() == spoilt.keys()
    return [p for key in sound for p in wrongly_typed(sound[key], spoilt[key], f"{path}/{key}")]


async def test_wrong_types_change_the_type_of_one_field(server: str) -> None:
    body = {"episode_id": await new_episode(server)}
    _, sound = await post(server, "/state", body)
    await always(server, FaultKind.WRONG_TYPES, paths=["/state"])
    seen = Counter()
    for _ in range(60):
        status, document = await post(server, "/state", body)
        assert status == 200
        wrong = wrongly_typed(sound, document)
        assert len(wrong) == 1
        seen.update(wrong)
    assert {"/result", "/result/done", "/result/info", "/result/info/seed"} <= seen.keys()
    await set_faults(server)


async def test_huge_body_is_the_answer_and_a_lot_of_nothing(server: str) -> None:
    episode_id = await new_episode(server)
    await always(server, FaultKind.HUGE_BODY, huge_body_mib=3)
    status, body = await raw_step(server, episode_id)
    assert status == 200
    assert 3 * 2**20 <= len(body) < 3.2 * 2**20
    assert json.loads(body)["result"]["info"]["step_count"] == 1


@pytest.mark.parametrize("style", ["plain", "kwargs"])
async def test_forgotten_episode(server: str, style: str) -> None:
    episode_id, other = await new_episode(server), await new_episode(server)
    await always(server, FaultKind.FORGET_EPISODE)
    arguments = {"action": "0", "episode_id": episode_id}
    body = arguments if style == "plain" else {"kwargs": arguments}
    _, document = await post(server, "/step", body)
    assert document["result"]["info"]["error"]["type"] == "episode_not_found"
    assert await steps_taken(server, other) == 0


async def test_hang_never_answers_and_ends_with_the_connection(server: str) -> None:
    episode_id = await new_episode(server)
    await always(server, FaultKind.HANG)
    hanging = asyncio.create_task(raw_step(server, episode_id))
    while not await injected(server):
        pass
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert await steps_taken(server, episode_id) == 0


async def test_restart_loses_every_episode(server: str) -> None:
    await set_faults(server, restart_after=3)
    first, second = await new_episode(server), await new_episode(server)
    with pytest.raises(aiohttp.ClientConnectionError):
        await new_episode(server)
    for episode_id in (first, second):
        state = await result(server, "/state", episode_id=episode_id)
        assert state["info"]["error"]["type"] == "episode_not_found"
    assert (await injected(server))["restart"] == 1
    await set_faults(server)


async def test_only_the_named_paths_are_disturbed(server: str) -> None:
    await always(server, FaultKind.HTTP_503, paths=["/stop", "/health"])
    episode_id = await new_episode(server)
    assert (await raw_step(server, episode_id))[0] == 200
    assert (await post(server, "/stop", {"episode_id": episode_id}))[0] == 503
    async with aiohttp.ClientSession(server) as http, http.get("/health") as response:
        assert response.status == 503
    assert await injected(server) == {FaultKind.HTTP_503: 2}
    await set_faults(server)


async def test_admin_refuses_a_bad_plan_and_keeps_the_old_one(server: str) -> None:
    await always(server, FaultKind.HTTP_500)
    async with aiohttp.ClientSession(server) as http:
        async with http.put("/admin/faults", json={"rates": {"earthquake": 1}}) as response:
            assert response.status == 422
        async with http.delete("/admin/faults") as response:
            document = await response.json()
    assert document["plan"]["rates"] == {}
    assert (await raw_step(server, await new_episode(server)))[0] == 200


async def test_admin_is_closed_unless_asked_for() -> None:
    with serve_in_thread() as server:
        async with aiohttp.ClientSession(server) as http, http.put("/admin/faults") as response:
            assert response.status == 404


plans = st.builds(
    FaultPlan,
    seed=st.integers(),
    rates=st.dictionaries(st.sampled_from(FaultKind), st.floats(0, 1 / len(FaultKind))),
    latency_ms=st.floats(0, 100),
)


@given(plan=plans, path=st.sampled_from(GAME_PATHS), count=st.integers(0, 10**6))
def test_a_plan_is_reproducible_also_after_a_trip_through_json(
    plan: FaultPlan, path: str, count: int
) -> None:
    copy = FaultPlan.model_validate_json(plan.model_dump_json())
    assert copy == plan
    assert copy.draw(path, count)[0] == plan.draw(path, count)[0]


def test_rates_are_what_happens() -> None:
    plan = FaultPlan(seed=3, rates={FaultKind.HTTP_500: 0.2, FaultKind.HANG: 0.05})
    drawn = Counter(plan.draw("/step", count)[0] for count in range(20_000))
    assert drawn[FaultKind.HTTP_500] == pytest.approx(4000, abs=300)
    assert drawn[FaultKind.HANG] == pytest.approx(1000, abs=150)
    other = FaultPlan(seed=4, rates=plan.rates)
    assert [plan.draw("/step", n)[0] for n in range(99)] != [
        other.draw("/step", n)[0] for n in range(99)
    ]


@pytest.mark.parametrize(
    "plan",
    [
        {"rates": {"hang": -0.1}},
        {"paths": ["step"]},
        {"sed": 1},
    ],
)
def test_impossible_plans(plan: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FaultPlan.model_validate(plan)


async def test_faults_from_the_start() -> None:
    plan = FaultPlan(rates={FaultKind.HTTP_503: 1.0})
    with serve_in_thread(ServerSettings(faults=plan)) as server:
        assert (await post(server, "/reset", {}))[0] == 503
