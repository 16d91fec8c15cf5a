"""Whole runs that play a step ahead, on a server that refuses weights while it samples."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from miner.environments import EpisodeTask
from miner.environments.base import Observation
from miner.environments.builtin import BuiltinEnvironment
from miner.inference.vllm.wire import BASE_WEIGHTS
from miner.reporting.run_folder import RunFolder
from miner.rollout.groups import GroupResult
from miner.training.rollouts import Rollouts
from miner.training.tasks import planned_tasks
from miner.training.trainer import EpisodeTrainer
from tests.builders import build_tokenizer
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.serving import stub_in_thread
from tests.training.in_process import Work, build_guesser, working_in
from tests.training.test_run import ask_to_stop

STEPS = 3
LONG_S = 120.0
"""A wait that only a failing test sees the end of."""


class Served(Work):
    """A folder to train in, and the server that generates."""

    stub: StubVllm
    url: str

    def train_on_it(self, *overrides: str) -> None:
        served = ("rollout.engine=vllm_server", f"rollout.server={self.url}")
        self.train(*served, f"optimizer.max_steps={STEPS}", *overrides)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Served]:
    tokenizer = build_tokenizer()
    stub = StubVllm(build_guesser(tokenizer), tokenizer, max_model_len=4096)
    with working_in(tmp_path) as plain, stub_in_thread(stub) as url:
        work = Served(plain.folder, plain.said, plain.trainers)
        work.stub, work.url = stub, url
        yield work
    stub.close()


@pytest.fixture
def at_loss(monkeypatch: pytest.MonkeyPatch):
    """Have something done while a step is trained, by its number."""
    todo: dict[int, Any] = {}
    compute = EpisodeTrainer._compute_loss

    def computed(trainer: EpisodeTrainer, model: Any, inputs: Any) -> torch.Tensor:
        todo.pop(trainer.state.global_step + 1, lambda: None)()
        return compute(trainer, model, inputs)

    monkeypatch.setattr(EpisodeTrainer, "_compute_loss", computed)
    return todo


def logprobs(trainer: EpisodeTrainer, batch: dict[str, Any]) -> torch.Tensor:
    """Of the batch's completions by the model as it is, of shape (rows, tokens)."""
    width = batch["completion_ids"].shape[1]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, width, batch_size=len(ids)
        )[0]


def gradient(trainer: EpisodeTrainer, batch: dict[str, Any]) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, batch).backward()
    found = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    trainer.model.zero_grad()
    return found


def test_rows_of_older_weights_are_corrected_for_and_evaluations_have_the_newest(
    work: Served, at_loss: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset, generate = BuiltinEnvironment.reset, EpisodeTrainer._generate_and_score_completions
    begun: defaultdict[EpisodeTask, Event] = defaultdict(Event)
    weights: list[dict[str, torch.Tensor]] = []
    corrected: list[float] = []

    async def noticed(environment: BuiltinEnvironment, task: EpisodeTask) -> Observation:
        begun[task].set()
        return await reset(environment, task)

    def looked_at(trainer: EpisodeTrainer, inputs: Any) -> dict[str, Any]:
        batch = generate(trainer, inputs)
        step = trainer.state.global_step
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        now = logprobs(trainer, batch)[mask]
        sampled = batch["sampling_per_token_logps"][mask]
        ratio = (now - sampled).exp().clamp(max=trainer.vllm_importance_sampling_clip_max)
        torch.testing.assert_close(batch["importance_sampling_ratio"][mask], ratio)
        weights.append({n: p.clone() for n, p in trainer.model.state_dict().items()})
        trainer.model.load_state_dict(weights[max(0, step - 1)])
        torch.testing.assert_close(logprobs(trainer, batch)[mask], sampled, atol=1e-3, rtol=0)
        trainer.model.load_state_dict(weights[step])
        plain = {**batch, "importance_sampling_ratio": torch.ones(mask.shape)}
        right, wrong = gradient(trainer, batch), gradient(trainer, plain)
        corrected.append(float((right - wrong).norm() / right.norm()))
        return batch

    monkeypatch.setattr(BuiltinEnvironment, "reset", noticed)
    monkeypatch.setattr(EpisodeTrainer, "_generate_and_score_completions", looked_at)

    def wait_for(task: EpisodeTask) -> None:
        assert begun[task].wait(LONG_S), "the next step's episodes have not begun"

    for step in range(1, STEPS):
        [*_, task] = planned_tasks(work.settings(), step, 0, 1)
        at_loss[step] = partial(wait_for, task)
    work.train_on_it("rollout.ahead=true", "evaluation.every_steps=1")
    assert len(corrected) == STEPS
    assert corrected[0] < 1e-3
    assert min(corrected[1:]) > 1e-2
    assert work.steps == [1, 2, 3]

    versions: dict[bool, list[str]] = {True: [], False: []}
    for version, body in work.stub.completions:
        seen = versions[body["temperature"] == 0]
        if version not in seen:
            seen.append(version)
    assert versions == {True: [BASE_WEIGHTS, "1", "2", "3"], False: [BASE_WEIGHTS, "1"]}
    pushes = [path for path, _ in work.stub.calls if path == "/start_weight_update"]
    assert len(pushes) == STEPS, "each arrived at once, and none was refused"


def test_a_killed_run_goes_on_with_the_tasks_that_it_would_have_had(
    work: Served, at_loss: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Rollouts.play
    tasks: defaultdict[str, set[tuple[int, EpisodeTask]]] = defaultdict(set)
    run = ["plain"]

    def noted(self: Rollouts, groups: Any, trainer: EpisodeTrainer) -> list[GroupResult]:
        results = play(self, groups, trainer)
        step = trainer.state.global_step
        tasks[run[0]] |= {(step, result.group.task) for result in results}
        return results

    class Killed(BaseException):
        pass

    def kill() -> None:
        run[0] = "resumed"
        raise Killed

    monkeypatch.setattr(Rollouts, "play", noted)
    elsewhere = (f"run_dir={work.folder}/plain", f"output.dir={work.folder}/plain-out/task/repo")
    work.train(f"optimizer.max_steps={STEPS}", *elsewhere)
    assert len(tasks["plain"]) == STEPS * 2
    run[0] = "killed"
    at_loss[2] = kill
    with pytest.raises(Killed):
        work.train_on_it("rollout.ahead=true", "checkpoint.every_steps=1")
    assert work.stub.idle.wait(LONG_S), "what the killed run asked for goes on"
    work.train_on_it("rollout.ahead=true", "checkpoint.every_steps=1")
    assert tasks["killed"] == {(step, task) for step, task in tasks["plain"] if step < 2}
    assert tasks["resumed"] == {(step, task) for step, task in tasks["plain"] if step > 0}
    assert work.steps == [1, 2, 3]


def test_sigterm_while_a_step_is_trained_gives_up_what_is_played_ahead(
    work: Served, at_loss: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what is played ahead would never come to an end."""
    reset, begun = BuiltinEnvironment.reset, Event()
    [*_, task_ahead] = planned_tasks(work.settings(), 1, 0, 1)

    async def stuck(environment: BuiltinEnvironment, task: EpisodeTask) -> Observation:
        if task == task_ahead:
            begun.set()
            await asyncio.Event().wait()
        return await reset(environment, task)

    def stop() -> None:
        assert begun.wait(LONG_S)
        ask_to_stop()

    monkeypatch.setattr(BuiltinEnvironment, "reset", stuck)
    at_loss[1] = stop
    work.train_on_it("rollout.ahead=true")
    assert work.steps == [1]
    assert work.checkpoint is not None
    assert work.checkpoint.step == 1
    evaluated = [record.step for record in RunFolder(work.run_dir).read().evaluations]
    assert evaluated == [0, 1]
