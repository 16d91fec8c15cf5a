"""Back to the best weights at half the rate: what returns, when, how often, and after a resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import COMPLETE
from miner.distributed.ranks import Ranks, join_ranks
from miner.distributed.zero import gathered_weights
from miner.evaluation.statistics import Estimate
from miner.publishing.best import Evaluated
from miner.reporting.figures import learning_curve
from miner.reporting.run_folder import RunFolder
from miner.training.checkpoints import CheckpointMarker
from miner.training.pace import Pace
from miner.training.run import Run
from miner.training.setback import Setback
from miner.training.trainer import EpisodeTrainer
from tests.deepspeed_here import needs_deepspeed
from tests.processes import run_ranks
from tests.training import rank_program
from tests.training.in_process import Work, working_in
from tests.training.test_held_out import World, result

BASE, BEST, LOW = [0.0, 1.0] * 20, [1.0] * 40, [0.0] * 40
RATE = 1e-2
SMALL = ("rollout.groups_per_step=1", "rollout.group_size=2")


class Watcher(TrainerCallback):
    """What the trainer holds when a step begins."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.moments: dict[int, list[torch.Tensor]] = {}
        self.versions: dict[int, int] = {}
        self.run: Run | None = None

    def on_step_begin(self, args, state, control, model, optimizer, **kwargs) -> None:
        step = state.global_step + 1
        trained = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self.weights[step] = trained
        states = optimizer.state_dict()["state"].values()
        self.moments[step] = [state["exp_avg_sq"].clone() for state in states]
        assert self.run is not None
        self.versions[step] = self.run._engine.sampler.weight_version


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with working_in(tmp_path) as work:
        yield work


def train(
    work: Work, monkeypatch: pytest.MonkeyPatch, held_out: Sequence[list[float]], *overrides: str
) -> Watcher:
    """A run that is evaluated every other step, with these scores instead of games."""
    scores, watcher = iter(held_out), Watcher()
    watch = Run.watch

    def watched(run: Run, *arguments: object) -> None:
        watch(run, *arguments)
        watcher.run = run
        run.trainer.add_callback(watcher)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "evaluate", lambda run: result(next(scores)))
        patch.setattr(Run, "watch", watched)
        work.train("evaluation.every_steps=2", "optimizer.most_halvings=2", *SMALL, *overrides)
    assert next(scores, None) is None, "evaluated less often than was expected"
    return watcher


def rates(work: Work) -> list[float]:
    steps = RunFolder(work.run_dir).read().steps
    return [record.metrics["learning_rate"] / RATE for record in steps]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_weights_and_optimizer_return_to_the_best_and_the_rate_is_halved(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at most, though many checkpoints were written since the best, and over a resume, which
    begins where the run had gone back to."""
    overrides = ("optimizer.max_steps=7", "checkpoint.every_steps=1")
    seen = train(work, monkeypatch, [BASE, BEST, LOW, LOW, LOW], *overrides)
    best = seen.weights[3]
    assert same(seen.weights[5], best)
    assert same(seen.weights[7], best)
    assert not same(seen.weights[4], best)
    for moment, then in zip(seen.moments[5], seen.moments[3], strict=True):
        assert torch.equal(moment, then)
    assert [seen.versions[step] for step in (3, 4, 5, 6)] == [2, 3, 2, 5]
    assert rates(work) == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.25])
    said = work.said.getvalue()
    fell = "step 4: held-out score -1.000 [-1.000, -0.873] against step 2: back to the weights of"
    assert f"{fell} step 2, learning rate halved (1 of 2 times at most)" in said
    assert said.count("learning rate halved") == 2  # the last evaluation fell as well

    steps = RunFolder(work.run_dir).read().steps
    drawn = learning_curve(steps, []).axes[0].lines
    assert [line.get_xdata()[0] for line in drawn if line.get_linestyle() == ":"] == [4.5, 6.5]

    shutil.rmtree(work.run_dir / "checkpoints" / "checkpoint-7")
    again = train(work, monkeypatch, [LOW], *overrides)
    assert same(again.weights[7], best)
    assert rates(work)[6:] == pytest.approx([0.25])


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_where_nothing_was_better_it_goes_back_to_the_base(
    tuning: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although many checkpoints were written since."""
    even = [*BEST[1:], 0.0]
    overrides = ("optimizer.max_steps=5", "checkpoint.every_steps=1", f"model.tuning={tuning}")
    seen = train(work, monkeypatch, [BEST, even, LOW, LOW], *overrides)
    assert same(seen.weights[5], seen.weights[1])
    assert not same(seen.weights[4], seen.weights[1])
    assert seen.moments[5] == []
    assert rates(work) == pytest.approx([1, 1, 1, 1, 0.5])
    assert len(list((work.run_dir / "checkpoints").glob("checkpoint-*"))) == 3


@pytest.mark.parametrize(
    ("low", "falls"),
    [
        (LOW, True),
        ([0.0] * 10 + [1.0] * 30, True),
        ([0.0] * 2 + [1.0] * 38, False),  # chance
        ([None] * 21 + [0.0] * 19, False),  # too few of them
    ],
)
def test_a_fall_is_one_that_chance_does_not_explain(low, falls: bool, tmp_path: Path) -> None:
    world = World(tmp_path, BASE, BEST, low)
    world.held_out.start()
    world.held_out.consider(10)
    assert world.held_out.fall(10) is None
    world.held_out.consider(20)
    assert (world.held_out.fall(20) is not None) == falls
    assert world.held_out.fall(30) is None  # nobody has evaluated these


class OneFell:
    """Held-out games as one rank sees them: step 1 was best, and only rank 0 saw step 2 fall."""

    best = Evaluated(1, (1.0,))

    def __init__(self, ranks: Ranks) -> None:
        self._leads = ranks.leads

    def fall(self, step: int) -> Estimate | None:
        return Estimate(-0.5, -0.6, -0.4, 10) if self._leads and step == 2 else None


class Seen(TrainerCallback):
    """The whole model's weights at the end of each step, and the rate of the next one."""

    def __init__(self, trainer: EpisodeTrainer, ranks: Ranks) -> None:
        self._trainer, self._ranks = trainer, ranks
        self.weights: list[dict[str, list[float]]] = []
        self.rates: list[float] = []

    def on_step_end(self, args, state, control, optimizer, **kwargs) -> None:
        whole = gathered_weights(self._trainer) or self._trainer.model.state_dict()
        part = {name: tensor.float().flatten()[:64].tolist() for name, tensor in whole.items()}
        self.weights.append(part)
        self.rates.append(optimizer.param_groups[0]["lr"])


def learn_and_fall(folder: Path, overrides: list[str]) -> None:
    """One rank of a run whose second step was a fall."""
    settings = rank_program.settings_of(folder, ["optimizer.max_steps=3", *overrides])
    ranks = join_ranks(settings)
    trainer = rank_program.make_trainer(settings, ranks)
    engine = SimpleNamespace(weights_changed=lambda version: None)
    seen = Seen(trainer, ranks)
    setback = Setback(OneFell(ranks), trainer, engine, ranks, most=1, note=lambda line: None)
    for callback in (setback, CheckpointMarker(Pace(3), ranks), seen):
        trainer.add_callback(callback)
    trainer.train()
    said = {"weights": seen.weights, "rates": seen.rates}
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(said))
    ranks.part()


def test_the_best_weights_are_saved_though_it_is_not_time(tmp_path: Path) -> None:
    args, control = TrainingArguments(str(tmp_path)), TrainerControl()
    trainer = engine = SimpleNamespace()
    setback = Setback(OneFell(Ranks()), trainer, engine, Ranks(), most=1, note=print)
    setback.on_step_end(args, TrainerState(global_step=1), control)
    assert control.should_save


@pytest.mark.parametrize("there", [True, False])
def test_a_checkpoint_that_is_not_whole_is_not_gone_back_to(there: bool, tmp_path: Path) -> None:
    args, state = TrainingArguments(str(tmp_path)), TrainerState(global_step=2)
    done: list[object] = []
    trainer = SimpleNamespace(halvings=0, go_back=done.append)
    engine = SimpleNamespace(weights_changed=done.append)
    setback = Setback(OneFell(Ranks()), trainer, engine, Ranks(), most=1, note=done.append)
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    if there:
        (folder / COMPLETE).touch()
    setback.on_step_end(args, state, TrainerControl())
    assert done[:-1] == ([folder, 1] if there else [None])
    assert ("step 1 was not saved" in done[-1]) != there


@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 3])
def test_all_ranks_go_back_though_one_alone_saw_the_fall(stage: int, tmp_path: Path) -> None:
    if stage:
        needs_deepspeed()
    run_ranks(tmp_path, learn_and_fall, tmp_path, [f"optimizer.zero_stage={stage}"])
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for rank in ranks:
        assert rank["rates"] == pytest.approx([4e-4, 2e-4, 2e-4])
    for rank in ranks[: 1 if stage else 2]:  # under ZeRO-3 rank 0 gathers
        first, second, third = rank["weights"]
        assert first
        assert second == first
        assert third != first
