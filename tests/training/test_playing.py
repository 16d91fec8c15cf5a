"""Rollouts that servers which answer have failed whole."""

import asyncio

import pytest

from miner.environments import InfrastructureError
from miner.inference.sampler import EngineLostError
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.training.playing import RETRY_PAUSE_S, RETRY_S, retrying
from tests.builders import build_task, build_trajectory
from tests.virtual_time import run_paused

TASK = build_task(0)


def of(*outcomes):
    return [GroupResult(Group(TASK, len(outcomes)), outcomes)]


def lost(error):
    return LostEpisode(TASK, error, 3)


FAILED = of(*[lost(InfrastructureError("HTTP 500", server="http://s"))] * 2)
PLAYED = of(build_trajectory(), lost(InfrastructureError("HTTP 500", server="http://s")))
NO_ENGINE = of(lost(EngineLostError("vLLM is gone")))


def retried(*plays, patience=60.0, took=0.0):
    """The result; the number of plays; the notes; the seconds of all plays and pauses."""
    waiting, notes = iter(plays), []
    played = 0

    async def play():
        nonlocal played
        played += 1
        await asyncio.sleep(took)
        return next(waiting, FAILED)

    result, seconds = run_paused(retrying(play, lambda: patience, notes.append))
    return result, played, notes, seconds


def test_a_rollout_that_failed_whole_is_played_again_until_an_episode_ends():
    result, played, notes, seconds = retried(FAILED, FAILED, PLAYED)
    assert result is PLAYED
    assert played == 3
    assert seconds == pytest.approx(2 * RETRY_PAUSE_S)
    (note,) = notes
    assert "HTTP 500" in note


@pytest.mark.parametrize("result", [PLAYED, NO_ENGINE, of()], ids=["some", "engine", "none"])
def test_other_rollouts_are_played_once(result):
    assert retried(result) == (result, 1, [], 0.0)


@pytest.mark.parametrize(
    ("patience", "took", "plays"),
    [(60.0, 0.0, 1 + RETRY_S / RETRY_PAUSE_S), (60.0, RETRY_S, 2), (0.0, 0.0, 1)],
    ids=["at once", "slowly", "asked to stop"],
)
def test_patience_ends(patience, took, plays):
    """A play that began within the time is played out."""
    result, played, notes, _ = retried(patience=patience, took=took)
    assert result is FAILED
    assert played == plays
    assert len(notes) == (patience > 0)
