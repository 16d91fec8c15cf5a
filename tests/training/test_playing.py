"""Rollouts that servers which answer have failed whole."""

import pytest

from miner.environments import InfrastructureError
from miner.inference.sampler import EngineLostError
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.training.playing import SPELL_PAUSE_S, SPELLS, outlasting
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


def outlasted(*plays, patience=60.0):
    """The result; the number of plays; the notes; the seconds of all pauses."""
    waiting, notes = iter(plays), []
    played = 0

    async def play():
        nonlocal played
        played += 1
        return next(waiting, FAILED)

    result, paused = run_paused(outlasting(play, lambda: patience, notes.append))
    return result, played, notes, paused


def test_a_rollout_that_failed_whole_is_played_again_until_an_episode_ends():
    result, played, notes, paused = outlasted(FAILED, FAILED, PLAYED)
    assert result is PLAYED
    assert played == 3
    assert paused == pytest.approx(2 * SPELL_PAUSE_S)
    assert notes == ["all episodes were lost, and are played again: HTTP 500"]


@pytest.mark.parametrize("result", [PLAYED, NO_ENGINE, of()], ids=["some", "engine", "none"])
def test_other_rollouts_are_played_once(result):
    assert outlasted(result) == (result, 1, [], 0.0)


@pytest.mark.parametrize(("patience", "plays"), [(60.0, SPELLS + 1), (0.0, 1)])
def test_patience_ends(patience, plays):
    result, played, _, paused = outlasted(patience=patience)
    assert result is FAILED
    assert played == plays
    assert paused == pytest.approx((plays - 1) * SPELL_PAUSE_S)
