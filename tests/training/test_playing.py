"""Rollouts that servers which answer have failed whole."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from miner.config.channel_facts import FACTS
from miner.config.run_files import BEST_FILE
from miner.environments import InfrastructureError
from miner.environments.builtin import BuiltinSource
from miner.environments.outages import Stopwatch
from miner.inference.sampler import EngineLostError
from miner.rollout.episode import RolloutStopped
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.rollout.renderer import ChatRenderer
from miner.training.episodes import task_stream
from miner.training.playing import FIRST_OUTAGE_S, RETRY_PAUSE_S, RETRY_S, Rollouts, retrying
from miner.training.stopping import StopRequest
from tests.builders import (
    ScriptedSampler,
    build_sample,
    build_task,
    build_tokenizer,
    build_trajectory,
)
from tests.training.test_reply_limits import job_on, rollouts_of
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


@pytest.mark.parametrize(
    ("channel", "begun", "waits"),
    [("auto", False, False), ("auto", True, True), ("duel", False, True)],
)
def test_servers_that_vanish_before_the_base_is_evaluated_are_left_to_the_orchestrator(
    tmp_path, channel, begun, waits
):
    dark = SimpleNamespace(seconds=lambda: FIRST_OUTAGE_S)
    run = SimpleNamespace(
        stop=StopRequest(),
        schedule=SimpleNamespace(patience=lambda: 5000.0),
        facts=FACTS[channel],
        dark=dark,
    )
    if begun:
        (tmp_path / BEST_FILE).write_text("{}")
    rollouts = Rollouts.__new__(Rollouts)
    rollouts._run, rollouts._settings = run, SimpleNamespace(run_dir=tmp_path)
    assert (rollouts._patience() > 0) is waits


class Gone(BuiltinSource):
    """Plays the first episode alone."""

    async def ready(self, environment, task):
        if task.seed % 2:
            raise InfrastructureError("it is away", server="http://s")


def test_a_base_whose_servers_vanished_has_not_been_evaluated(tmp_path, loop):
    """However many of its games were over."""
    settings, dark = job_on("0", tmp_path), Stopwatch()
    said = build_sample([*ChatRenderer(build_tokenizer()).encode("1"), 1])
    rollouts = rollouts_of(settings, ScriptedSampler(lambda _: said), loop)
    rollouts._run.dark, rollouts._run.facts = dark, FACTS["graded"]
    tasks = task_stream(settings.environment).held_out(2, 7)
    assert rollouts.evaluate(tasks).episodes
    dark.start()
    assert rollouts.evaluate(tasks).episodes, "it was there for all of them"
    rollouts._run.source = Gone()
    with pytest.raises(InfrastructureError, match="start them again"):
        rollouts.evaluate(tasks)
    (tmp_path / BEST_FILE).write_text("{}")
    assert rollouts.evaluate(tasks).episodes


def test_a_rank_without_a_held_out_game_waits_for_those_of_others(tmp_path, loop):
    """As with few problems of one's own on many GPUs."""
    renderer = ChatRenderer(build_tokenizer())
    said = build_sample([*renderer.encode("1"), renderer.eos_token_id])
    settings = job_on("1xH100-80GB", tmp_path)
    parts = [None, None]

    def gather_as(rank):
        def gather(part):
            parts[rank] = part
            return parts

        return gather

    tasks = task_stream(settings.environment).held_out(1, 7)
    for rank in (1, 0):  # the first gathers nothing yet: it is asked again
        ranks = SimpleNamespace(count=2, rank=rank, leads=not rank, gather=gather_as(rank))
        rollouts = rollouts_of(settings, ScriptedSampler(lambda _: said), loop, ranks)
        with suppress(RolloutStopped):
            found = rollouts.evaluate(tasks)
    assert parts[1].episodes == ()
    assert len(found.episodes) == 1
    assert found.environment == parts[0].environment


def test_an_evaluation_says_that_it_begins(tmp_path, loop):
    """On a CPU all games may be played at once, and end together after minutes."""
    settings, order = job_on("1xH100-80GB", tmp_path), []

    def reply(prompt_ids):
        order.append("reply")
        return said

    renderer = ChatRenderer(build_tokenizer())
    said = build_sample([*renderer.encode("1"), renderer.eos_token_id])
    rollouts = rollouts_of(settings, ScriptedSampler(reply), loop, beat=order.append)
    rollouts.evaluate(task_stream(settings.environment).held_out(2, 7))
    assert order[:2] == ["evaluation", "reply"]
    assert order[-1] == "evaluation"
