"""Longest replies of a first-format job: whole in held-out games, short in training."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from miner.environments.builtin import BuiltinSource
from miner.environments.outages import Stopwatch
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.training.episodes import task_stream
from miner.training.playing import Rollouts
from miner.training.stopping import StopRequest
from tests.builders import ScriptedSampler, build_sample, build_tokenizer
from tests.entrypoint.test_run_settings import planned
from tests.entrypoint.test_topology import MODELS


def rollouts_of(
    settings, sampler, loop, ranks=None, beat=lambda phase: None, step=1, left=math.inf
):
    engine = SimpleNamespace(sampler=sampler, playing=nullcontext, engine_loss=lambda: None)
    ranks = ranks or SimpleNamespace(count=1, rank=0, leads=True, gather=lambda part: [part])
    heartbeat = SimpleNamespace(beat=beat)
    parts = {
        "engine": engine,
        "source": BuiltinSource(),
        "learner": SimpleNamespace(
            renderer=ChatRenderer(build_tokenizer()), as_published=nullcontext
        ),
        "trainer": SimpleNamespace(state=SimpleNamespace(global_step=step)),
        "schedule": SimpleNamespace(for_evaluation=lambda: left),
        "progress": SimpleNamespace(note=print),
        "stop": StopRequest(),
        "facts": SimpleNamespace(first_format=False),
        "dark": Stopwatch(),
    }
    return Rollouts(
        SimpleNamespace(settings=settings, ranks=ranks, heartbeat=heartbeat, loop=loop, **parts)
    )


def job_on(inventory, tmp_path, *overrides):
    settings = planned(*overrides, inventory=inventory, shape=MODELS["3B"], servers=())[0]
    return settings.having(run_dir=tmp_path, rollout={"max_episode_tokens": 8192})


@pytest.mark.parametrize(
    ("inventory", "overrides", "held_out"),
    [
        ("1xH100-80GB", (), 256),
        ("4xH100-80GB", (), 256),
        ("0", (), 16),
        ("1xH100-80GB", ("evaluation.max_reply_tokens=32",), 32),
        ("0", ("evaluation.max_reply_tokens=64",), 64),
    ],
)
def test_a_base_is_judged_by_its_whole_replies(tmp_path, loop, inventory, overrides, held_out):
    renderer = ChatRenderer(build_tokenizer())
    said = build_sample([*renderer.encode("I do not know"), renderer.eos_token_id])
    sampler = ScriptedSampler(lambda _: said)
    settings = job_on(inventory, tmp_path, *overrides)
    rollouts, tasks = rollouts_of(settings, sampler, loop), task_stream(settings.environment)
    rollouts.evaluate(tasks.held_out(2, 7))
    assert {asked.max_tokens for asked in sampler.params} == {held_out}
    assert {asked.temperature for asked in sampler.params} == {0.0}
    sampler.params.clear()
    rollouts.player()([Group(tasks.training(0, 0), 1)])
    assert {asked.max_tokens for asked in sampler.params} == {16}


@pytest.mark.parametrize(("step", "counted"), [(0, 2), (1, 0)])
def test_what_was_learned_is_judged_by_the_games_for_which_there_is_time(
    tmp_path, loop, step, counted
):
    """The base's games are what all others are compared with."""
    settings = job_on("0", tmp_path)
    sampler = ScriptedSampler(lambda _: build_sample([1]))
    rollouts = rollouts_of(settings, sampler, loop, step=step, left=0.0)
    result = rollouts.evaluate(task_stream(settings.environment).held_out(2, 7))
    assert sum(episode.score is not None for episode in result.episodes) == counted
