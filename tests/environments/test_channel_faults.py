"""Both server channels on a server that fails on demand: typed errors, never a wrong score."""

import asyncio
from collections.abc import Callable

import pytest

from miner.environments import (
    EnvironmentFault,
    EnvironmentSource,
    EpisodeTask,
    InfrastructureError,
    ProtocolError,
    step,
)
from miner.environments.graded import GradedSource
from miner.environments.step import StepSource
from mock_env_server.faults import FaultKind
from mock_env_server.running import running_server
from tests.environments.playing import messy, play_on
from tests.mock_env_server.http import set_faults

TASKS = [EpisodeTask("goofspiel", 3 * seed, seed) for seed in range(12)]


def step_source(url: str) -> StepSource:
    return StepSource([url], reply_timeout_s=0.5)


def graded_source(url: str) -> GradedSource:
    return GradedSource([url], turn_timeout_s=0.5, episode_timeout_s=10)


CHANNELS = [pytest.param(step_source, id="step"), pytest.param(graded_source, id="graded")]
ENTRANCES = {step_source: ("/reset", "/step"), graded_source: ("/evaluate",)}
Opener = Callable[[str], EnvironmentSource]


async def outcome(source: EnvironmentSource, task: EpisodeTask) -> float | EnvironmentFault:
    """The score of one try at a task, or the fault that ended it."""
    try:
        played = await play_on(source, task, messy(task.seed))
    except EnvironmentFault as fault:
        return fault
    assert played.score is not None
    return played.score


async def outcomes(source: EnvironmentSource) -> list[float | EnvironmentFault]:
    """One try at each task, all at once; closes the source."""
    try:
        return await asyncio.gather(*(outcome(source, task) for task in TASKS))
    finally:
        await source.close()


def patient(opened: Opener, url: str) -> EnvironmentSource:
    """A source with the patience of production: no reply of a good server is late to it."""
    return type(opened(url))([url])


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind != FaultKind.WRONG_TYPES])
@pytest.mark.parametrize("opened", CHANNELS)
async def test_a_server_that_fails_is_an_infrastructure_error(
    unreliable_url: str, opened: Opener, kind: FaultKind
) -> None:
    for path in ENTRANCES[opened]:
        if kind is FaultKind.FORGET_EPISODE and path != "/step":
            continue  # there is no episode to forget
        await set_faults(unreliable_url, path, rates={kind: 1.0})
        hangs = kind is FaultKind.HANG
        source = opened(unreliable_url) if hangs else patient(opened, unreliable_url)
        faults = await outcomes(source)
        # A messy policy may fail by itself before it sends anything to /step.
        met = [fault for fault in faults if not (path == "/step" and fault == 0.0)]
        assert len(met) > 6
        for fault in met:
            assert type(fault) is InfrastructureError, (kind, path, fault)
            assert fault.server == unreliable_url


@pytest.mark.parametrize("opened", CHANNELS)
async def test_a_field_of_a_wrong_type_is_a_protocol_error_or_was_not_needed(
    unreliable_url: str, opened: Opener
) -> None:
    true_scores = await outcomes(patient(opened, unreliable_url))
    for path in ENTRANCES[opened]:
        await set_faults(unreliable_url, path, rates={FaultKind.WRONG_TYPES: 1.0})
        results = await outcomes(patient(opened, unreliable_url))
        faults = [result for result in results if isinstance(result, EnvironmentFault)]
        assert faults
        assert {type(fault) for fault in faults} == {ProtocolError}
        for result, true_score in zip(results, true_scores, strict=True):
            assert isinstance(result, EnvironmentFault) or result == true_score


@pytest.mark.parametrize("opened", CHANNELS)
async def test_faults_now_and_then_never_change_a_score(
    unreliable_url: str, opened: Opener
) -> None:
    true_scores = await outcomes(patient(opened, unreliable_url))
    assert set(true_scores) == {0.0, 1.0} or set(true_scores) == {0.0, 0.5, 1.0}
    common = [kind for kind in FaultKind if kind is not FaultKind.HANG]
    share = 0.4 if opened is graded_source else 0.03
    await set_faults(unreliable_url, seed=5, rates={kind: share / len(common) for kind in common})
    source = patient(opened, unreliable_url)
    lost = 0
    for task, true_score in zip(TASKS, true_scores, strict=True):
        for _ in range(20):
            result = await outcome(source, task)
            if not isinstance(result, EnvironmentFault):
                assert result == true_score
                break
            lost += 1
        else:
            pytest.fail(f"{task} was lost 20 times")
    await source.close()
    assert lost > 0, "no fault was met: weak test"


async def test_faults_of_stop_are_ignored(
    unreliable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_STOP_S", 0.1)  # a stop alone may hang, and is then waited for so
    true_scores = await outcomes(patient(step_source, unreliable_url))
    for kind in FaultKind:
        await set_faults(unreliable_url, "/stop", rates={kind: 1.0})
        assert await outcomes(patient(step_source, unreliable_url)) == true_scores


@pytest.mark.parametrize("opened", CHANNELS)
async def test_a_dying_server_is_a_fault_and_another_one_takes_over(
    correct_url: str, opened: Opener
) -> None:
    with running_server("correct") as server:
        source = patient(opened, server.base_url)
        environment = source.open()
        await environment.reset(TASKS[0])
        server.process.kill()
        server.process.wait()
        with pytest.raises(InfrastructureError) as caught:
            await environment.step("0")
        await environment.close()
        await source.close()
        both = type(source)([server.base_url, correct_url])
        results = [await outcome(both, task) for task in TASKS]
        await both.close()
    assert caught.value.server == server.base_url
    # The dead server is met once and rests: it does not attract what it cannot play.
    faults = [result for result in results if isinstance(result, EnvironmentFault)]
    assert [fault.server for fault in faults] == [server.base_url] * len(faults)
    assert 1 <= len(faults) < len(TASKS) / 2


@pytest.mark.parametrize("opened", CHANNELS)
async def test_an_environment_can_be_reset_before_its_episode_is_over(
    correct_url: str, opened: Opener
) -> None:
    source = opened(correct_url)
    environment = source.open()
    first = await environment.reset(TASKS[0])
    await environment.step("0")
    assert await environment.reset(TASKS[0]) == first
    await environment.close()
    with pytest.raises(ProtocolError, match="call reset"):
        await environment.step("0")
    await source.close()
