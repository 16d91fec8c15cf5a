"""One run in this process, from settings to a published model: stopped, resumed, watched."""

import asyncio
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file

from miner.config.channel_facts import FACTS
from miner.config.heartbeat import HeartbeatWriter
from miner.config.settings import Settings
from miner.environments import EpisodeTask, ProtocolError
from miner.environments.base import Observation
from miner.environments.builtin import BuiltinEnvironment
from miner.environments.outages import Outages
from miner.evaluation.grader import TRAINING_SEEDS, episode_list, held_out_list
from miner.learning.trainer import EpisodeTrainer
from miner.publishing.best import BestModel
from miner.publishing.errors import PublishingError
from miner.publishing.gate import undecided_pairs
from miner.publishing.publisher import Publisher
from miner.reporting.run_folder import RunFolder
from miner.rollout.episode import SampledConversation
from miner.training import playing
from miner.training import run as training
from miner.training.episodes import training_dataset
from miner.training.rollout_function import RolloutFunction
from tests.machine import Machine
from tests.training.in_process import Work
from tests.virtual_time import Clock


@pytest.fixture
def at_rollout(monkeypatch: pytest.MonkeyPatch):
    """Have something done in the rollout of a step, before its episodes are played."""
    todo = {}
    before = EpisodeTrainer._generate_and_score_completions

    def generate(trainer, inputs):
        todo.pop(trainer.state.global_step + 1, lambda: None)()
        return before(trainer, inputs)

    monkeypatch.setattr(EpisodeTrainer, "_generate_and_score_completions", generate)
    return todo


@pytest.fixture
def at_reply(monkeypatch: pytest.MonkeyPatch):
    """Have something done at an episode's reply; counts those sampled from then on."""
    reply, counted = SampledConversation.reply, [0]

    def at(number: int, do: Callable[[], object]) -> list[int]:
        async def replies(player: SampledConversation) -> str:
            counted[0] += 1
            if counted[0] == number:
                do()
            return await reply(player)

        monkeypatch.setattr(SampledConversation, "reply", replies)
        return counted

    return at


def ask_to_stop() -> None:
    """Returns once the main thread has taken notice; where nobody would, all tests would end."""
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the run did not take it over"
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(6000):
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            return
        time.sleep(0.01)
    pytest.fail("for a minute the main thread took no notice of SIGTERM")


def test_sigterm_aborts_the_episodes_of_a_step_at_their_next_turn(
    work: Work, at_rollout, at_reply
) -> None:
    """Two groups of four: the ninth reply is the second of an episode, of six or more."""
    counted = [0]
    at_rollout[3] = lambda: counted.append(at_reply(9, ask_to_stop))
    result = work.train("optimizer.max_steps=50")
    assert work.steps == [1, 2]
    assert counted[-1][0] <= 9 + 8
    assert work.checkpoint is not None
    assert work.checkpoint.step == 2
    assert "asked to stop: step 3 is aborted" in work.said.getvalue()
    assert result.output_dir == work.published
    evaluated = [record.step for record in RunFolder(work.run_dir).read().evaluations]
    assert evaluated == [0, 2]
    at_rollout[4] = ask_to_stop
    work.train("optimizer.max_steps=50")
    assert work.steps == [1, 2, 3], "the step that was given up is made in the next run"


def test_sigterm_after_the_episodes_lets_the_step_end(work: Work, monkeypatch) -> None:
    compute = EpisodeTrainer._compute_loss

    def asked(trainer, model, inputs):
        ask_to_stop()
        return compute(trainer, model, inputs)

    monkeypatch.setattr(EpisodeTrainer, "_compute_loss", asked)
    work.train("optimizer.max_steps=50", "optimizer.micro_batch_tokens=100000")
    assert work.steps == [1]
    assert work.checkpoint is not None
    assert work.checkpoint.step == 1


def test_sigterm_before_training_ends_what_is_played(work: Work, monkeypatch) -> None:
    """The evaluation of the base, which the next run repeats."""
    played, step = [0], BuiltinEnvironment.step

    async def asked(environment, reply):
        played[0] += 1
        if played[0] == 3:
            ask_to_stop()
        return await step(environment, reply)

    monkeypatch.setattr(BuiltinEnvironment, "step", asked)
    result = work.train("optimizer.max_steps=50", "evaluation.episodes=400")
    assert (result.step, result.score) == (0, None)
    assert played[0] < 400 * 8 / 2
    assert (work.steps, work.checkpoint) == ([], None)
    assert RunFolder(work.run_dir).read().evaluations == []
    assert "asked to stop before training" in work.said.getvalue()
    base, published = (load_file(at / "model.safetensors") for at in (work.base, work.published))
    assert all(torch.equal(published[name], tensor) for name, tensor in base.items())
    assert work.train("optimizer.max_steps=1").score is not None


def test_sampler_and_trainer_agree_at_the_temperature_that_is_set(work: Work, monkeypatch) -> None:
    gaps, generate = [], EpisodeTrainer._generate_and_score_completions

    def compared(trainer, inputs):
        batch = generate(trainer, inputs)
        ids, there = batch["completion_ids"], batch["completion_mask"]
        with torch.no_grad():
            logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, there, ids.shape[1], batch_size=len(ids)
            )
        gap = (logprobs - batch["sampling_per_token_logps"])[there.bool()]
        gaps.append(float(gap.abs().max()))
        return batch

    monkeypatch.setattr(EpisodeTrainer, "_generate_and_score_completions", compared)
    work.train("optimizer.max_steps=1", "rollout.temperature=0.5")
    (gap,) = gaps
    assert gap < 1e-3


def test_a_resumed_run_begins_with_the_weights_of_its_checkpoint(work: Work) -> None:
    """Of the last step, so that nothing is trained on top."""
    overrides = ("optimizer.max_steps=2", "checkpoint.every_steps=2")
    work.train(*overrides)
    work.train(*overrides)
    assert "resuming from step 2" in work.said.getvalue()
    run = RunFolder(work.run_dir).read()
    assert run.replays.keys() == {f"{name}-{n}" for name in ("base", "held-out") for n in (1, 2)}
    assert run.evaluations[-1].difference is not None
    saved = load_file(work.run_dir / "checkpoints" / "checkpoint-2" / "model.safetensors")
    base = load_file(work.base / "model.safetensors")
    resumed = work.trainers[1].model.state_dict()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in saved.items())
    assert not all(torch.equal(base[name], tensor) for name, tensor in saved.items())


def test_each_episode_and_each_pass_is_a_sign_of_life(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a step's or an evaluation's may take longer than the watchdog waits."""
    phases = Counter[str]()
    monkeypatch.setattr(HeartbeatWriter, "beat", lambda _, phase, step=0: phases.update([phase]))
    work.train("optimizer.max_steps=1", "optimizer.micro_batch_tokens=256")
    assert (phases["evaluation"], phases["rollout"]) == (2 * (1 + 10), 2 * 4)
    assert phases["step"] > 1, "only the step's end"


def test_the_last_weights_are_written_again_where_the_disk_was_full(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, failures = Publisher.publish, iter([PublishingError("no space left")])

    def full_at_first(*wanted: Any) -> None:
        for failure in failures:
            raise failure
        publish(*wanted)

    monkeypatch.setattr(Publisher, "publish", full_at_first)
    monkeypatch.setattr(BestModel, "replaced_by", lambda *_: True)
    assert work.train("optimizer.max_steps=1").step == 1


def test_a_model_of_duels_is_verified_in_the_dtype_that_it_is_served_in(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = MagicMock(side_effect=PublishingError)
    monkeypatch.setattr(training, "Publisher", opened)
    with pytest.raises(PublishingError):
        work.train("environment.channel=duel", "environment.games=['leduc_poker']")
    assert opened.call_args.kwargs.get("dtype") == "bfloat16"


def test_a_killed_run_plays_the_tasks_of_its_remaining_steps(
    work: Work, at_rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    asked: list[list[str]] = []
    play = RolloutFunction.__call__

    def noted(function: RolloutFunction, prompts: list[str], trainer: EpisodeTrainer):
        asked.append(list(dict.fromkeys(prompts)))
        return play(function, prompts, trainer)

    monkeypatch.setattr(RolloutFunction, "__call__", noted)
    overrides = ("optimizer.max_steps=3", "checkpoint.every_steps=1")
    at_rollout[3] = kill
    with pytest.raises(Killed):
        work.train(*overrides)
    work.train(*overrides)
    planned = [row["prompt"] for row in training_dataset(work.settings(*overrides))]
    assert asked == [planned[0:2], planned[2:4], planned[4:6]]
    assert work.steps == [1, 2, 3]


def test_no_checkpoint_is_complete_while_updates_are_skipped(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = EpisodeTrainer._compute_loss

    def poisoned(trainer, model, inputs):
        loss = compute(trainer, model, inputs)
        return loss * float("nan") if trainer.state.global_step == 1 else loss

    monkeypatch.setattr(EpisodeTrainer, "_compute_loss", poisoned)
    work.train("optimizer.max_steps=2", "checkpoint.every_steps=1")
    assert not (work.run_dir / "checkpoints" / "checkpoint-2").exists()
    assert work.checkpoint is not None
    assert work.checkpoint.step == 1


def test_graded_games_are_played_neither_in_training_nor_to_choose_the_best(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[EpisodeTask] = []
    reset = BuiltinEnvironment.reset

    async def recorded(environment: BuiltinEnvironment, task: EpisodeTask) -> Observation:
        played.append(task)
        return await reset(environment, task)

    monkeypatch.setattr(BuiltinEnvironment, "reset", recorded)
    work.train("optimizer.max_steps=2", "evaluation.episodes=30", "evaluation.every_steps=1")
    held_out = held_out_list(30, 7, "goofspiel", sizes=(8,))
    chosen_by = [task for task in played if task in held_out]
    trained_on = [task.seed for task in played if task not in held_out]
    assert len(chosen_by) == 3 * 30  # the base and two steps
    assert len(trained_on) == 2 * 2 * 4
    assert not {task.seed for task in held_out} & set(trained_on)
    graded = {task.seed for task in episode_list(250, sizes=(8,))}
    assert not graded & {task.seed for task in played}


def test_a_lost_episode_prints_no_row_of_the_batch(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TRL would print all columns of the row; that one was lost is said by the scheduler."""
    reset, first = BuiltinEnvironment.reset, []

    async def one_fails(environment: BuiltinEnvironment, task: EpisodeTask) -> Observation:
        if task.seed in TRAINING_SEEDS and first[:1] in ([], [task]):
            first.append(task)
            raise ProtocolError("not this one", server="builtin")
        return await reset(environment, task)

    monkeypatch.setattr(BuiltinEnvironment, "reset", one_fails)
    work.train("optimizer.max_steps=1")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("not this one" in text for text in told)
    assert not any("turn_rewards" in text or "episode_reward" in text for text in told)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.close()


@pytest.fixture
def at_pause(monkeypatch: pytest.MonkeyPatch):
    """Have something done in the pauses of the wait for servers, by their number."""
    todo: dict[int, Callable[[], object]] = {}
    pauses = itertools.count(1)

    async def pause(seconds: float) -> None:
        await asyncio.to_thread(todo.pop(next(pauses), lambda: None))

    monkeypatch.setattr(playing, "Outages", partial(Outages, sleep=pause))
    return todo


def test_a_run_waits_for_a_server_that_went_away_and_continues(
    work: Work, machine: Machine, at_rollout, at_pause, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is no part of how long a step takes: another one has room after it."""
    url, clock = machine.start(), Clock()
    for name in ("Schedule", "Stopwatch"):
        monkeypatch.setattr(training, name, partial(getattr(training, name), clock=clock))
    phases = []

    def look() -> None:
        clock.now += 1000.0
        phases.append(json.loads((work.run_dir / "heartbeat.json").read_text())["phase"])

    at_rollout[2] = lambda: machine.kill(0)
    at_pause[2] = look
    at_pause[3] = lambda: machine.start(0)
    settings = ("optimizer.max_steps=3", "environment.channel=graded", "deadline.seconds=1500")
    work.train(*settings, ENVIRONMENT_SERVER_URLS=url)
    assert work.steps == [1, 2, 3]
    records = RunFolder(work.run_dir).read().steps
    assert [record.lost_episodes for record in records] == [0, 0, 0]
    assert phases == ["waiting for environment servers"]
    lines = work.said.getvalue().splitlines()
    said = [line for line in lines if "environment server" in line and "answer" in line]
    assert [line.split(" (")[0].split(" after")[0] for line in said] == [
        "no environment server answers",
        f"environment server {url} answers again",
    ]


def test_a_stop_request_does_not_wait_for_the_server(
    work: Work, machine: Machine, at_rollout, at_pause
) -> None:
    url = machine.start()
    at_rollout[2] = lambda: machine.kill(0)
    at_pause[1] = ask_to_stop
    at_pause[2] = lambda: pytest.fail("it waits on")
    work.train("optimizer.max_steps=3", "environment.channel=graded", ENVIRONMENT_SERVER_URLS=url)
    assert work.steps == [1]
    assert work.checkpoint is not None


def test_a_finished_run_is_lengthened_by_a_higher_limit_of_steps(work: Work) -> None:
    work.train("optimizer.max_steps=2")
    work.train("optimizer.max_steps=4")
    assert work.steps == [1, 2, 3, 4]
    assert work.checkpoint is not None
    assert work.checkpoint.step == 4


def test_a_finished_run_is_lengthened_by_more_time(
    work: Work, at_rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds a step; with as much as before none is left."""
    clock = Clock()
    monkeypatch.setattr(training, "Schedule", partial(training.Schedule, clock=clock))

    def play() -> None:
        clock.now += 10

    at_rollout |= dict.fromkeys(range(1, 20), play)
    for seconds, steps in ((20, 2), (20, 2), (45, 4)):
        work.train(f"deadline.seconds={seconds}", "checkpoint.every_steps=100")
        assert work.steps == [*range(1, steps + 1)]
        assert work.checkpoint is not None
        assert work.checkpoint.step == steps


def test_held_out_games_have_their_rhythm_and_the_channels_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "HeldOut", lambda *parts, **named: named)
    wanted = ["environment.channel=duel", "evaluation.every_steps=7", "evaluation.time_share=0.2"]
    run = MagicMock(settings=Settings.load(None, wanted, environ={}), facts=FACTS["duel"])
    named: Any = training._held_out(run, MagicMock())
    assert (named["every_steps"], named["time_share"]) == (7, 0.2)
    assert named["gate"] is undecided_pairs
