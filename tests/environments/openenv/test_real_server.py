"""OpenEnv itself: episodes, capacity and faults on its own server, one for the whole file."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.train_open_spiel import dialogue
from miner.config.channel_settings import OpenEnvSettings
from miner.environments import EpisodeTask, ProtocolError
from miner.environments.openenv import OpenEnvSource, check, open_openenv
from miner.environments.openenv.hosting import LocalApp, start
from miner.environments.outages import Outages, Stopwatch
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import RetryParams, Scheduler
from tests.builders import ScriptedSampler, build_sample, build_tokenizer
from tests.commands import status_of
from tests.environments.openenv.here import REPOSITORY, needs_openenv, python_of_openenv

needs_openenv()

APP = Path(__file__).with_name("real_app.py")
SESSIONS = 4
RANGE, TOO_LITTLE = "return_range=[-1, 1]", "environment.openenv.return_range=[0, 0.1]"
TOKENIZER = build_tokenizer()


class Shared(LocalApp):
    """Outlives the sources of single tests."""

    def stop(self) -> None:
        """Not yet."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalApp]:
    host = Shared(str(APP), python_of_openenv())
    asyncio.run(start(host, 120.0))
    yield host
    LocalApp.stop(host)


@asynccontextmanager
async def source_on(host: LocalApp, **settings: Any) -> AsyncIterator[OpenEnvSource]:
    chosen = OpenEnvSettings(**{"sessions": SESSIONS, **settings})
    opened = await open_openenv([host.url], chosen)
    source = OpenEnvSource(opened.clients, chosen, opened.codec, host)
    yield source
    await source.close()


async def test_it_is_found_out(server: LocalApp) -> None:
    source = await open_openenv([server.url], OpenEnvSettings(sessions=6))
    findings = await check(source)
    await source.close()
    assert findings.details["codec"] == 'a reply becomes the action {"word": "{reply}"}'
    assert findings.details["seeds"] == "seeded"
    assert findings.details["sessions"] == (SESSIONS,)
    assert findings.details["scores"] == (pytest.approx(0.3), pytest.approx(0.3))


@pytest.mark.parametrize(
    ("word", "comes"),
    [
        ("well", 0.1),
        ("true", 1.0),
        ("none", "without any reward"),
        ("nan", "without any reward"),
        ("infinite", "without any reward"),
        ("raise", "EXECUTION_ERROR: 'as you say'"),
        ("misspell", "VALIDATION_ERROR, not of the action: 'text: Field required; txet: Extra"),
        ("big", "more than 4,194,304 bytes"),
    ],
)
async def test_what_a_step_does_arrives_as_what_it_is(
    server: LocalApp, word: str, comes: float | str
) -> None:
    async with source_on(server) as source:
        source.rewarded = True
        environment = source.open()
        await environment.reset(EpisodeTask("openenv", 1, 1))
        if isinstance(comes, float):
            assert (await environment.step(word)).reward == comes
        else:
            with pytest.raises(ProtocolError, match=comes):
                await environment.step(word)
        await environment.close()


@pytest.mark.parametrize("reply", ["{}", '{"wrod": "well"}', '{"word": 3}'])
async def test_what_is_no_action_of_the_servers_is_refused(server: LocalApp, reply: str) -> None:
    async with source_on(server, action="json") as source:
        environment = source.open()
        await environment.reset(EpisodeTask("openenv", 1, 1))
        step = await environment.step(reply)
        await environment.close()
    assert not step.valid
    assert "word: " in step.messages[0]["content"]


def scheduler(source: OpenEnvSource, outages: Outages | None, words: Sequence[str]) -> Scheduler:
    """Plays with these replies, the last one for the rest; no episode has a second attempt."""
    samples = [
        build_sample([*TOKENIZER(word)["input_ids"], TOKENIZER.eos_token_id]) for word in words
    ]
    replies = iter([*samples[:-1], *[samples[-1]] * 1000])

    def reply(prompt_ids: Sequence[int]) -> Sample:
        return next(replies)

    return Scheduler(
        source,
        sampled(
            ScriptedSampler(reply),
            ChatRenderer(TOKENIZER),
            EpisodeParams(SamplingParams(max_tokens=8), max_tokens=100_000),
        ),
        retry=RetryParams(infrastructure_attempts=1, other_attempts=1, pause_seconds=0.0),
        outages=outages,
    )


GROUPS = [Group(EpisodeTask("openenv", seed, seed), 4) for seed in range(3)]


async def test_more_episodes_than_sessions_are_all_played(server: LocalApp) -> None:
    async with source_on(server, sessions=12) as source:
        source.places[server.url].limit = 12  # as if nobody had asked the server
        results = await scheduler(source, None, ["well"]).run(GROUPS)
        assert source.capacity == SESSIONS
    scores = [trajectory.score for result in results for trajectory in result.trajectories]
    assert scores == [pytest.approx(0.3)] * 12


async def test_a_server_killed_in_mid_episode_is_revived_and_no_episode_is_lost(
    server: LocalApp,
) -> None:
    """Nothing of the broken episodes counts: each has three turns of the server that answers."""
    said: list[str] = []
    async with source_on(server) as source:
        outages = Outages(
            source,
            Stopwatch(),
            patience=lambda: 1.0,
            note=said.append,
            sleep=lambda _: asyncio.sleep(0.1),
        )
        results = await scheduler(source, outages, [*["well"] * 5, "die", "well"]).run(GROUPS)
    trajectories = [t for result in results for t in result.trajectories]
    assert [t.score for t in trajectories] == [pytest.approx(0.3)] * 12
    assert [line.split(" (")[0].split(" after")[0] for line in said] == [
        "no environment server answers",
        f"environment server {server.url} answers again",
    ]


def probed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Status, output and errors of `miner probe` on an OpenEnv server."""
    monkeypatch.setenv("COLUMNS", "200")
    return status_of("probe", "environment.channel=openenv", *words), *capsys.readouterr()


def test_the_command_shows_a_game_of_openspiel(monkeypatch, capsys) -> None:
    file = str(REPOSITORY / "examples/openenv/open_spiel.py")
    python = f"environment.openenv.python={python_of_openenv()}"
    settings = [python, *("environment.openenv." + s for s in ("show=board", RANGE))]
    status, out, _ = probed(monkeypatch, capsys, f"environment.openenv.app={file}", *settings)
    assert not status
    assert 'the action {"action_id": "{integer}"}' in out
    assert "the seed decides about the game" in out
    opening = "...\n...\n...\nLegal actions: 0, 1, 2, 3, 4, 5, 6, 7, 8"
    assert repr(opening) in out
    asked, _ = dialogue(random.Random(0))[0]
    assert opening in asked, "the example's base has read what is asked here"


def test_the_command_reports_what_to_set(monkeypatch, capsys, server: LocalApp) -> None:
    status, _, err = probed(monkeypatch, capsys, f"environment.servers={server.url}", TOO_LITTLE)
    assert status
    assert "environment.openenv.return_range" in err
