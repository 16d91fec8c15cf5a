"""Back to the best weights at half the rate: what returns, when, how often, and after a resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import COMPLETE, HEARTBEAT_FILE
from miner.distributed.ranks import Ranks, join_ranks
from miner.evaluation.statistics import Estimate
from miner.inference.merged_weights import weights_on_cpu
from miner.publishing.best import Evaluated
from miner.publishing.deadline import Deadline
from miner.reporting.figures import learning_curve
from miner.reporting.run_folder import RunFolder
from miner.training.checkpoints import CheckpointMarker
from miner.training.heart import Heart
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


def test_where_nothing_was_better_the_base_and_a_new_optimizer_return(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint outlives the rotation."""
    overrides = ("optimizer.max_steps=7", "checkpoint.every_steps=1")
    seen = train(work, monkeypatch, [BEST, LOW, LOW, LOW, LOW], *overrides)
    base = seen.weights[1]
    assert same(seen.weights[3], base)
    assert same(seen.weights[5], base)
    assert not same(seen.weights[2], base)
    assert seen.moments[3] == []
    assert seen.moments[2] != []
    assert [seen.versions[step] for step in (1, 2, 3, 4)] == [0, 1, 0, 3]
    assert rates(work) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25, 0.25])
    fell = "step 2: held-out score -1.000 [-1.000, -0.873] against step 0: back to the weights of"
    assert f"{fell} step 0, learning rate halved (1 of 2 times at most)" in work.said.getvalue()
    assert (work.run_dir / "checkpoints" / "checkpoint-0" / COMPLETE).exists()


def test_a_resumed_run_goes_back_to_what_was_published_not_to_what_has_its_number(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best weights were lost with the process; the run comes to their step again, by others."""
    overrides = ("optimizer.max_steps=3", "checkpoint.every_steps=1")
    train(work, monkeypatch, [BASE, BEST, LOW], *overrides)
    shutil.rmtree(work.run_dir / "checkpoints")
    seen = train(work, monkeypatch, [LOW, LOW], *overrides)
    assert same(seen.weights[3], seen.weights[1])
    assert seen.versions[3] == 0
    assert rates(work) == pytest.approx([1, 1, 0.5])


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


def test_a_fall_is_one_from_the_highest_score_whatever_was_published_since(tmp_path: Path) -> None:
    """Three games of forty are chance, so they are published; three more are not."""
    lower, lowest = [0.0] * 3 + [1.0] * 37, [0.0] * 6 + [1.0] * 34
    world = World(tmp_path, BASE, BEST, lower, lowest)
    world.held_out.start()
    for step in (10, 20, 30):
        world.held_out.consider(step)
        assert world.held_out.rose(step) == (step == 10)
        assert (world.held_out.fall(step) is not None) == (step == 30)
    assert (world.held_out.best.step, world.held_out.highest.step) == (20, 10)


class OneFell:
    """Held-out games as one rank sees them: step 1 was best, and only rank 0 saw step 2 fall."""

    highest = Evaluated(1, (1.0,))

    def __init__(self, ranks: Ranks) -> None:
        self._leads = ranks.leads

    def published(self, step: int) -> bool:
        return step == 1

    rose = published

    def fall(self, step: int) -> Estimate | None:
        return Estimate(-0.5, -0.6, -0.4, 10) if self._leads and step == 2 else None


class Seen(TrainerCallback):
    """The whole model's weights at the end of each step, what this rank's optimizer steps on, its
    moments, and the rate of the next step."""

    def __init__(self, trainer: EpisodeTrainer, ranks: Ranks) -> None:
        self._trainer, self._ranks = trainer, ranks
        self.weights: list[dict[str, list[float]]] = []
        self.steered: list[list[list[float]]] = []
        self.moments: list[list[list[float]]] = []
        self.rates: list[float] = []

    def on_step_end(self, args, state, control, optimizer, **kwargs) -> None:
        whole = weights_on_cpu(self._trainer.model)
        self.weights.append({name: head(tensor) for name, tensor in whole.items()})
        self.rates.append(optimizer.param_groups[0]["lr"])
        shares = None  # ZeRO-3 shows them to torch's optimizer only while it steps
        while hasattr(optimizer, "optimizer"):  # accelerate's holds DeepSpeed's, and that torch's
            optimizer = optimizer.optimizer
            shares = shares or getattr(optimizer, "fp32_partitioned_groups_flat", None)
        steered = [each for group in optimizer.param_groups for each in group["params"]]
        self.steered.append([head(each) for each in shares or steered])
        names = ("exp_avg", "exp_avg_sq", "step")
        states = optimizer.state.values()
        self.moments.append([head(torch.as_tensor(each[n])) for each in states for n in names])


def head(tensor: torch.Tensor) -> list[float]:
    """The first numbers of it, and what all of them come to."""
    flat = tensor.detach().float().flatten()
    return [*flat[:64].tolist(), float(flat.double().abs().sum())]


def learn_and_fall(folder: Path, plans: list[tuple[int, str]]) -> None:
    """One rank of runs, one by one, of a ZeRO stage and a tuning; their second step was a fall."""
    ranks = None
    for stage, tuning in plans:
        own = folder / f"{stage}-{tuning}"
        overrides = [f"optimizer.zero_stage={stage}", f"model.tuning={tuning}"]
        settings = rank_program.settings_of(
            own, ["optimizer.max_steps=3", "optimizer.most_halvings=1", *overrides]
        )
        ranks = ranks or join_ranks(settings)
        AcceleratorState._reset_state(reset_partial_state=True)
        trainer = rank_program.make_trainer(settings, ranks)
        seen = Seen(trainer, ranks)
        setback = make_setback(own, ranks, trainer, print)
        marker = CheckpointMarker(Pace(3), ranks, published=OneFell(ranks).published)
        for callback in (setback, marker, seen):
            trainer.add_callback(callback)
        trainer.train()
        said = {name: getattr(seen, name) for name in ("weights", "steered", "moments", "rates")}
        (own / f"rank-{ranks.rank}.json").write_text(json.dumps(said))
    assert ranks is not None
    ranks.part()


def make_setback(
    folder: Path, ranks: Ranks, trainer: Any, note: Callable[[str], None], pace: Pace | None = None
) -> Setback:
    folder.mkdir(exist_ok=True)
    engine = SimpleNamespace(weights_changed=lambda step: note(f"weights of {step}"))
    parts = (OneFell(ranks), trainer, engine, ranks, pace or Pace(3), Heart(folder))
    return Setback(*parts, most=1, note=note)


def test_the_best_weights_are_saved_though_it_is_not_time(tmp_path: Path) -> None:
    """Unless no evaluation is to come which could find them lost; the watchdog hears of it."""
    args, state = TrainingArguments(str(tmp_path)), TrainerState(global_step=1)
    late = Pace(3, deadline=Deadline(0, started_at=0.0))
    for pace, kept in ((late, False), (Pace(3), True)):
        control = TrainerControl()
        make_setback(tmp_path, Ranks(), SimpleNamespace(), print, pace).on_step_end(
            args, state, control
        )
        assert control.should_save == kept
        assert (tmp_path / HEARTBEAT_FILE).exists() == kept


@pytest.mark.parametrize(("whole", "published"), [(True, True), (True, False), (False, False)])
def test_only_a_whole_checkpoint_of_published_weights_is_gone_back_to(
    whole: bool, published: bool, tmp_path: Path
) -> None:
    """Nor is another left alone by rotation, whatever an earlier process took for the best."""
    args, state = TrainingArguments(str(tmp_path)), TrainerState(global_step=2)
    state.best_model_checkpoint = "checkpoint-7"
    done: list[object] = []
    trainer = SimpleNamespace(halvings=0, go_back=done.append)
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    if whole:
        marker = {"step": 1, "elapsed": 1.0, "published": published}
        (folder / COMPLETE).write_text(json.dumps(marker))
    make_setback(tmp_path, Ranks(), trainer, done.append).on_step_end(args, state, TrainerControl())
    assert done[:-1] == ([folder, "weights of 1"] if published else [])
    assert state.best_model_checkpoint == (str(folder) if published else None)


@pytest.mark.parametrize(("step", "held", "saved"), [(0, False, 1), (0, True, 0), (1, False, 0)])
def test_the_base_is_saved_once_before_anything_is_learned(
    step: int, held: bool, saved: int, tmp_path: Path
) -> None:
    """Not once more over itself: a kill would leave half of what is marked as whole."""
    if held:
        folder = tmp_path / "checkpoint-0"
        folder.mkdir()
        marker = {"step": 0, "elapsed": 1.0, "published": True}
        (folder / COMPLETE).write_text(json.dumps(marker))
    saves: list[int] = []
    trainer = SimpleNamespace(save_between_steps=lambda: saves.append(step))
    make_setback(tmp_path, Ranks(), trainer, print).on_train_begin(
        TrainingArguments(str(tmp_path)), TrainerState(global_step=step), TrainerControl()
    )
    assert len(saves) == saved


@pytest.mark.long
@pytest.mark.parametrize(
    "plans", [[(0, "full"), (0, "lora")], [(2, "full"), (2, "lora"), (3, "full"), (3, "lora")]]
)
def test_all_ranks_go_back_though_one_alone_saw_the_fall(
    plans: list[tuple[int, str]], tmp_path: Path
) -> None:
    """Weights, what the optimizer steps on, and its moments; then all of them learn on."""
    if plans[0][0]:
        needs_deepspeed()
    run_ranks(tmp_path, learn_and_fall, tmp_path, plans)
    for stage, tuning in plans:
        for rank in range(2):
            said = json.loads((tmp_path / f"{stage}-{tuning}" / f"rank-{rank}.json").read_text())
            assert said["rates"] == pytest.approx([4e-4, 2e-4, 2e-4])
            gathered = stage < 3 or rank == 0  # under ZeRO-3 rank 0 gathers
            for name in ("weights", "steered", "moments") if gathered else ("steered", "moments"):
                first, second, third = said[name]
                assert first, (stage, tuning, name)
                assert second == first, (stage, tuning, name)
                assert third != first, (stage, tuning, name)
