"""Checks before training: seeds, sessions, rewards, and servers that do not fit."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from miner.channels.openenv import OpenEnvChannel
from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.distributed.launch import free_port
from miner.environments import EpisodeTask, InfrastructureError, ProtocolError
from miner.environments.findings import Findings
from miner.environments.openenv import check, open_openenv
from tests.environments.openenv.server_double import (
    Double,
    error,
    observation,
    serving,
    source_of,
)
from tests.environments.playing import until
from tests.environments.raw_server import http, raw_server


def shows(word, reward: float | None = 0.5):
    """Answers of one turn; `word(seed)` is what a game is about."""

    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        if kind == "reset":
            return observation(str(word(data["seed"])))
        return observation(reward=reward, done=True)

    return answer


async def looked_at(*doubles: Double, **settings: Any) -> Findings:
    async with AsyncExitStack() as stack:
        for double in doubles:
            await stack.enter_async_context(serving(double))
        chosen = OpenEnvSettings(**{"start_seconds": 5.0, "sessions": 4, **settings})
        source = await open_openenv([double.url for double in doubles], chosen)
        stack.push_async_callback(source.close)
        return await check(source)


@pytest.mark.parametrize(
    ("word", "seeds"), [(lambda seed: seed % 100, "seeded"), (lambda seed: "same", "constant")]
)
async def test_seeds_are_judged_by_what_they_do(word, seeds: str) -> None:
    findings = await looked_at(Double(shows(word)), Double(shows(word)))
    assert findings.details["seeds"] == seeds
    assert findings.details["sessions"] == (4, 4)
    assert findings.details["scores"] == (0.5, 0.5)
    assert findings.to_json()["warning"] == ""
    assert findings.to_json()["scoring"] == "A score is the sum of an episode's rewards."


async def test_what_scores_are_mapped_from_is_reported() -> None:
    findings = await looked_at(Double(shows(str)), return_range=(-1.0, 1.0))
    assert "-1 scores 0 and 1 scores 1" in findings.to_json()["scoring"]
    assert findings.to_json()["notes"][0].startswith("OpenEnv environment")


async def test_rewards_distinguish_games_as_well() -> None:
    counter = itertools.count()

    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        reward = next(counter) % 7 / 10
        return observation() if kind == "reset" else observation(reward=reward, done=True)

    assert (await looked_at(Double(answer), unseeded="allow")).details["seeds"] == "unseeded"


@pytest.mark.parametrize("servers", ["one ignores seeds", "two disagree"])
async def test_unseeded_servers_are_refused_or_warned_about(servers: str) -> None:
    counter = itertools.count()
    if servers == "two disagree":
        doubles = [Double(shows(lambda seed: seed)), Double(shows(lambda seed: -seed))]
    else:
        doubles = [Double(shows(lambda seed: next(counter)))]
    with pytest.raises(ConfigurationError, match='unseeded="allow"'):
        await looked_at(*doubles)
    findings = await looked_at(*doubles, unseeded="allow")
    assert findings.details["seeds"] == "unseeded"
    assert "luck" in findings.to_json()["warning"]


@pytest.mark.parametrize(
    ("settings", "blind"),
    [({}, True), ({"system": "Speak."}, False), ({"opening": {"message": "?"}}, False)],
)
async def test_an_empty_first_prompt_is_warned_about_with_the_way_out(
    settings: dict[str, Any], blind: bool
) -> None:
    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        return observation("what?" if turn else "", reward=0.1, done=turn == 3)

    warning = (await looked_at(Double(answer), **settings)).warning
    ways = [f"environment.openenv.{name}" in warning for name in ("reset", "opening", "system")]
    assert ways == [blind] * 3


@pytest.mark.parametrize("loc", [["message"], [], ["text"]])
async def test_replies_that_are_all_refused_are_warned_about(loc: list[str]) -> None:
    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        refusal = error("VALIDATION_ERROR", errors=[{"loc": loc, "msg": "no"}])
        return observation("what?") if kind == "reset" else refusal

    warning = (await looked_at(Double(answer), max_turns=2)).warning
    how = "no episode came to its end" if loc == ["text"] else "no reply was accepted"
    assert warning.startswith(how)


async def test_a_server_that_takes_fewer_sessions_gets_fewer() -> None:
    findings = await looked_at(Double(shows(int), capacity=1), Double(shows(int), capacity=3))
    assert findings.details["sessions"] == (1, 3)
    silent = Double(shows(int), capacity=2, tells_capacity=False)
    [learned] = (await looked_at(silent)).details["sessions"]
    assert 1 <= learned < 4


def channel_on(*doubles: Double, **settings: Any) -> OpenEnvChannel:
    chosen = OpenEnvSettings(**{"start_seconds": 5.0, "sessions": 8, **settings})
    servers = tuple(double.url for double in doubles)
    return OpenEnvChannel(EnvironmentSettings(channel="openenv", servers=servers, openenv=chosen))


async def test_processes_share_the_places_that_the_check_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("miner.channels.openenv.world_size", lambda: 2)
    async with AsyncExitStack() as stack:
        large, small, away = (Double(shows(int), capacity=n) for n in (100, 3, 100))
        for double in (large, small):
            await stack.enter_async_context(serving(double))
        away.url = "http://127.0.0.1:9"
        channel = channel_on(large, small, away, start_seconds=0.5)
        lead = await channel.open()
        stack.push_async_callback(lead.close)
        findings = await channel.check(lead)
        other = await channel_on(large, small, away).open(findings)
        stack.push_async_callback(other.close)
        for source in (lead, other):
            limits = {url: places.limit for url, places in source.places.items()}
            assert limits == {large.url: 4, small.url: 1}
            assert source.capacity // 2 == 5


@pytest.mark.parametrize(("local", "limit"), [(False, 1), (True, 2)])
async def test_processes_share_what_a_server_turns_out_to_take(local: bool, limit: int) -> None:
    async with serving(Double(shows(int), capacity=2)) as server, source_of(server) as source:
        source._host = Mock() if local else None  # each process has a local server of its own
        source.share({server.url: 8}, processes=2)
        task, episodes = EpisodeTask("openenv", 7, 7), [source.open() for _ in range(3)]
        for episode in episodes[:2]:
            await episode.ready(task)
        waiting, places = asyncio.create_task(episodes[2].ready(task)), source.places[server.url]
        before = places.limit
        await until(lambda: places.limit < before)
        assert places.limit == limit
        for episode in episodes[:2]:
            await episode.close()
        await waiting
        await episodes[2].close()


async def test_episodes_are_spread_by_what_each_server_takes() -> None:
    async with source_of(
        small := Double(shows(int), url="http://127.0.0.1:9"),
        large := Double(shows(int), url="http://127.0.0.1:10"),
    ) as source:
        source.share({small.url: 2, large.url: 12}, processes=2)
        opened = [source.open().server for _ in range(7)]
        assert (opened.count(small.url), opened.count(large.url)) == (1, 6)


async def test_a_server_with_fewer_sessions_than_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One process would wait as long as the other has episodes to play."""
    monkeypatch.setattr("miner.channels.openenv.world_size", lambda: 2)
    async with AsyncExitStack() as stack:
        single = await stack.enter_async_context(serving(Double(shows(int), capacity=1)))
        channel = channel_on(single)
        lead = await channel.open()
        stack.push_async_callback(lead.close)
        with pytest.raises(ConfigurationError, match="takes 1 sessions at once"):
            await channel.check(lead)


async def test_a_server_that_comes_late_is_waited_for_as_long_as_patience_lasts() -> None:
    port = free_port()
    double = Double(shows(int), url=f"http://127.0.0.1:{port}")
    opening = asyncio.create_task(channel_on(double, start_seconds=0.01).open(patience_s=60.0))
    await asyncio.sleep(0.05)
    async with serving(double, port):
        source = await opening
        assert source.servers == (double.url,)
        await source.close()


async def test_an_environment_without_rewards_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="gives no reward"):
        await looked_at(Double(shows(int, reward=None)))


async def test_replies_that_make_a_step_fail_are_a_finding() -> None:
    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        return observation("word?") if kind == "reset" else error("EXECUTION_ERROR", "five letters")

    findings = await looked_at(Double(answer))
    assert findings.details["scores"] is None
    assert "five letters" in findings.warning
    assert findings.details["seeds"] == "constant"


async def test_a_server_that_is_away_is_left_out_while_another_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = "http://127.0.0.1:9"
    settings = OpenEnvSettings(start_seconds=0.1, sessions=2)
    async with serving(Double(shows(int))) as server:
        source = await open_openenv([away, server.url], settings)
        assert source.servers == (server.url,)
        await source.close()
    assert away in caplog.text
    with pytest.raises(InfrastructureError, match="no OpenEnv server answers"):
        await open_openenv([away], settings)


async def test_servers_of_different_environments_are_refused() -> None:
    schema = {"properties": {"move": {"type": "integer"}}, "required": ["move"]}
    with pytest.raises(ConfigurationError, match="different environments"):
        await looked_at(Double(shows(int)), Double(shows(int), schema=schema))


async def test_a_server_that_is_none_of_openenvs_is_named() -> None:
    async with raw_server(lambda path, body: http({"detail": "Not Found"}, 404)) as server:
        with pytest.raises(ProtocolError, match=f"{server.url}/schema answered HTTP 404"):
            await open_openenv([server.url], OpenEnvSettings(start_seconds=1.0))
    with pytest.raises(ConfigurationError, match="a file that serves one"):
        await open_openenv([], OpenEnvSettings())
