"""Back to the best weights at half the rate: what returns, when, how often, and after a resume."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import HEARTBEAT_FILE
from miner.distributed.ranks import Ranks, join_ranks
from miner.evaluation.statistics import Estimate
from miner.inference.merged_weights import weights_on_cpu
from miner.learning import checkpoints
from miner.learning.checkpoints import Checkpoints, RunDisk
from miner.learning.schedule import Schedule
from miner.learning.trainer import EpisodeTrainer
from miner.publishing.best import Evaluated
from miner.reporting.figures import learning_curve
from miner.reporting.run_folder import RunFolder
from miner.training import revert
from miner.training import run as training
from miner.training.playing import OpenRun, Rollouts
from miner.training.revert import BestWeights, RevertToBest
from tests.deepspeed_here import needs_deepspeed
from tests.processes import run_ranks
from tests.training import rank_program
from tests.training.in_process import Work
from tests.training.scripted_evaluations import result

BASE, BEST, LOW = [0.0, 1.0] * 20, [1.0] * 40, [0.0] * 40
RATE = 1e-2
SMALL = ("rollout.groups_per_step=1", "rollout.group_size=2")


class Watcher(TrainerCallback):
    """What the trainer holds when a step begins."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.moments: dict[int, list[torch.Tensor]] = {}
        self.versions: dict[int, int] = {}
        self.run: OpenRun | None = None
        self.kept: Path | None = None

    def on_step_begin(self, args, state, control, model, optimizer, **kwargs) -> None:
        step = state.global_step + 1
        trained = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self.weights[step] = trained
        states = optimizer.state_dict()["state"].values()
        self.moments[step] = [state["exp_avg_sq"].clone() for state in states]
        assert self.run is not None
        self.versions[step] = self.run.engine.sampler.weight_version

    def on_save(self, args, state, control, **kwargs) -> None:
        """Keep step 3's checkpoint, which the next one replaces."""
        if state.global_step == 3:
            folder = Path(args.output_dir)
            self.kept = folder.with_name("kept")
            kept = self.kept / "checkpoint-3"
            shutil.copytree(folder / "checkpoint-3", kept, dirs_exist_ok=True)


def train(
    work: Work, monkeypatch: pytest.MonkeyPatch, held_out: Sequence[list[float]], *overrides: str
) -> Watcher:
    """A run that is evaluated every other step, with these scores instead of games."""
    scores, watcher = iter(held_out), Watcher()
    add_callbacks = training._add_callbacks

    def watched(run: OpenRun, *arguments: Any) -> Checkpoints:
        checkpoints = add_callbacks(run, *arguments)
        watcher.run = run
        run.trainer.add_callback(watcher)
        return checkpoints

    with monkeypatch.context() as patch:
        patch.setattr(Rollouts, "evaluate", lambda rollouts, tasks: result(next(scores)))
        patch.setattr(training, "_add_callbacks", watched)
        work.train("evaluation.every_steps=2", "optimizer.most_halvings=2", *SMALL, *overrides)
    assert next(scores, None) is None, "evaluated less often than was expected"
    return watcher


def rates(work: Work) -> list[float]:
    steps = RunFolder(work.run_dir).read().steps
    return [record.metrics["learning_rate"] / RATE for record in steps]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def zero(moments: list[torch.Tensor]) -> bool:
    return bool(moments) and not any(moment.any() for moment in moments)


def test_the_best_weights_return_without_moments_and_the_rate_is_halved(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at most; a run that resumes from a checkpoint of before reverts at once."""
    overrides = ("optimizer.max_steps=7", "checkpoint.every_steps=1")
    seen = train(work, monkeypatch, [BASE, BEST, LOW, LOW, LOW], *overrides)
    best = seen.weights[3]
    assert same(seen.weights[5], best)
    assert same(seen.weights[7], best)
    assert not same(seen.weights[4], best)
    assert [zero(seen.moments[step]) for step in (3, 5, 7)] == [False, True, True]
    assert [seen.versions[step] for step in (3, 4, 5, 6)] == [2, 3, 2, 5]
    assert rates(work) == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.25])
    said = work.said.getvalue()
    fell = "step 4: held-out score -1.000 [-1.000, -0.873] against step 2: back to the weights of"
    assert f"{fell} step 2, learning rate halved (1 of 2 times at most)" in said
    assert said.count("learning rate halved") == 2  # the last evaluation fell as well

    steps = RunFolder(work.run_dir).read().steps
    drawn = learning_curve(steps, []).axes[0].lines
    assert [line.get_xdata()[0] for line in drawn if line.get_linestyle() == ":"] == [4.5, 6.5]

    assert seen.kept is not None
    for _ in range(2):  # killed once more, before the next checkpoint
        shutil.rmtree(work.run_dir / "checkpoints")
        shutil.copytree(seen.kept, work.run_dir / "checkpoints")
        again = train(work, monkeypatch, [LOW, LOW, LOW], *overrides)
        assert same(again.weights[4], best)
        assert zero(again.moments[4])
        assert rates(work)[3:] == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_where_nothing_was_better_the_base_returns_without_a_checkpoint_of_it(
    work: Work, monkeypatch: pytest.MonkeyPatch, tuning: str
) -> None:
    overrides = ("optimizer.max_steps=7", "checkpoint.every_steps=3", f"model.tuning={tuning}")
    seen = train(work, monkeypatch, [BEST, LOW, LOW, LOW, LOW], *overrides)
    base = seen.weights[1]
    assert same(seen.weights[3], base)
    assert same(seen.weights[5], base)
    assert not same(seen.weights[2], base)
    assert [zero(seen.moments[step]) for step in (2, 3, 5)] == [False, True, True]
    assert [seen.versions[step] for step in (1, 2, 3, 4)] == [0, 1, 0, 3]
    assert rates(work) == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25, 0.25])
    fell = "step 2: held-out score -1.000 [-1.000, -0.873] against step 0: back to the weights of"
    assert f"{fell} step 0, learning rate halved (1 of 2 times at most)" in work.said.getvalue()
    assert [f.name for f in work.run_dir.glob("checkpoints/checkpoint-*")] == ["checkpoint-7"]


def test_the_best_weights_outlive_all_checkpoints_and_their_number(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart begins with them. It comes to their step again, by others, which the engine holds
    under that number."""
    overrides = ("optimizer.max_steps=3", "checkpoint.every_steps=1")
    before = train(work, monkeypatch, [BASE, BEST, LOW], *overrides)
    shutil.rmtree(work.run_dir / "checkpoints")
    seen = train(work, monkeypatch, [LOW, LOW], *overrides)
    assert same(seen.weights[1], before.weights[3])
    assert same(seen.weights[3], before.weights[3])
    assert [seen.versions[step] for step in (1, 2, 3)] == [2, 1, -1]
    assert "beginning with the weights of step 2, kept before a restart" in work.said.getvalue()
    assert before.run is not None
    assert seen.run is not None
    first, second = before.run.schedule, seen.run.schedule
    assert 0.0 < second._spent_before < first.elapsed, "the time until they were kept is over"
    assert rates(work) == pytest.approx([1, 1, 0.5])


def test_halvings_outlive_a_restart_without_a_checkpoint(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run would lose the same games again at the full rate, as often as it is killed."""
    overrides = ("optimizer.max_steps=5", "checkpoint.every_steps=1")
    before = train(work, monkeypatch, [BASE, BEST, LOW, LOW], *overrides)
    assert rates(work) == pytest.approx([1, 1, 1, 1, 0.5])
    shutil.rmtree(work.run_dir / "checkpoints")
    seen = train(work, monkeypatch, [LOW, LOW, LOW], *overrides)
    assert same(seen.weights[1], before.weights[3])
    assert rates(work) == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25])


def test_a_run_that_lost_its_best_weights_is_not_thrown_back_to_the_base(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again far below the highest score, and is expected to."""
    train(work, monkeypatch, [BASE, BEST, LOW], "optimizer.max_steps=3")
    shutil.rmtree(work.run_dir / "checkpoints")
    (work.run_dir / "best-weights.safetensors").unlink()
    train(work, monkeypatch, [LOW, LOW, LOW], "optimizer.max_steps=5")
    assert rates(work) == pytest.approx([1] * 5)
    assert "learning rate halved" not in work.said.getvalue()


def test_a_run_that_ended_with_its_best_weights_can_go_back_to_them(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = "checkpoint.every_steps=1"
    train(work, monkeypatch, [BASE, BASE, BEST], "optimizer.max_steps=3", every)
    seen = train(work, monkeypatch, [LOW, LOW], "optimizer.max_steps=5", every)
    assert same(seen.weights[5], seen.weights[4])
    assert rates(work)[4] == pytest.approx(0.5)


def test_a_second_restart_keeps_what_was_learned_after_the_first(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step at which the first life went back means nothing in the second."""
    every = "checkpoint.every_steps=1"
    train(work, monkeypatch, [BASE, LOW, LOW], "optimizer.max_steps=3", every)
    shutil.rmtree(work.run_dir / "checkpoints")
    train(work, monkeypatch, [LOW], "optimizer.max_steps=1", every)
    seen = train(work, monkeypatch, [LOW], "optimizer.max_steps=2", every)
    assert min(seen.weights) == 2
    assert not zero(seen.moments[2])
    assert "kept before a restart" not in work.said.getvalue()


def test_best_weights_that_do_not_fit_are_left_out_with_one_line(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(checkpoints, "shutil", full)
    seen = train(work, monkeypatch, [BASE, BEST, LOW, LOW], "optimizer.max_steps=5")
    assert not same(seen.weights[5], seen.weights[1]), "the base was not the best"
    said = work.said.getvalue()
    assert "learning rate halved" not in said
    assert said.count("step 2: its weights are not kept to return to, which needs") == 1
    assert "0 MB are free" in said
    assert work.checkpoint is None


def test_best_weights_that_a_disk_refuses_are_left_out_with_its_reason(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(revert, "save_file", refuse)
    train(work, monkeypatch, [BASE, BEST, LOW], "optimizer.max_steps=3")
    assert "not kept to return to, no space left on device" in work.said.getvalue()


class OneFell:
    """Held-out games as one rank sees them: step 1 was best, and only rank 0 saw step 2 fall."""

    highest = Evaluated(1, (1.0,))

    def __init__(self, ranks: Ranks) -> None:
        self._leads = ranks.leads

    def rose(self, step: int) -> bool:
        return step == 1

    def fall(self, step: int) -> Estimate | None:
        return Estimate(-0.5, -0.6, -0.4, 10) if self._leads and step == 2 else None

    def lengthen(self, seconds: float) -> None:
        pass


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
        trained = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
        learner: Any = SimpleNamespace(trained=trained)
        best = BestWeights(learner, ranks, RunDisk(own, print))
        trainer.add_callback(make_revert(own, ranks, trainer, best, print))
        trainer.add_callback(seen)
        trainer.train()
        said = {name: getattr(seen, name) for name in ("weights", "steered", "moments", "rates")}
        (own / f"rank-{ranks.rank}.json").write_text(json.dumps(said))
    assert ranks is not None
    ranks.detach()


def make_revert(
    folder: Path,
    ranks: Ranks,
    trainer: Any,
    best: Any,
    note: Callable[[str], None],
    schedule: Schedule | None = None,
    targets: bool = False,
) -> RevertToBest:
    folder.mkdir(exist_ok=True)
    engine: Any = SimpleNamespace(weights_changed=lambda step: note(f"weights of {step}"))
    held_out: Any = OneFell(ranks)
    parts = (
        held_out,
        trainer,
        best,
        engine,
        ranks,
        schedule or Schedule(3),
        HeartbeatWriter(folder),
    )
    return RevertToBest(*parts, folder, most=1, targets=targets, note=note)


def test_the_best_weights_are_kept_while_another_evaluation_can_find_them_lost(
    tmp_path: Path,
) -> None:
    """The watchdog hears of it."""
    args, state = TrainingArguments(str(tmp_path)), TrainerState(global_step=1)
    now, kept, longer = [0.0], [], []

    def keep(step: int, elapsed: float) -> None:
        kept.append(step)
        now[0] += 7.0

    late = Schedule(3, kill_in=0)
    for schedule, expected in ((late, []), (Schedule(3, clock=lambda: now[0]), [1])):
        trainer, best = SimpleNamespace(halvings=0), SimpleNamespace(keep=keep)
        way_back = make_revert(tmp_path, Ranks(), trainer, best, print, schedule)
        way_back._held_out.lengthen = longer.append
        way_back.on_step_end(args, state, TrainerControl())
        assert (kept, longer) == (expected, [7.0] * len(expected))
        assert (tmp_path / HEARTBEAT_FILE).exists() == bool(expected)


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
            for name in ("weights", "steered"):
                first, second, third = said[name]
                assert first, (stage, tuning, name)
                assert second == first, (stage, tuning, name)
                assert third != first, (stage, tuning, name)
            moments = [any(any(each) for each in step) for step in said["moments"]]
            assert moments == [True, False, True], (stage, tuning)
