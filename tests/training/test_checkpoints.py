"""Checkpoints: their times, their cost, and a disk that has no room for them."""

import errno
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError
from transformers import TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer

from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import COMPLETE, has_checkpoint, newest_checkpoint
from miner.distributed.ranks import Ranks
from miner.learning import checkpoints
from miner.learning.checkpoints import Checkpoints, RunDisk, checkpoint_bytes
from miner.learning.schedule import Schedule
from miner.learning.trainer import EpisodeTrainer
from miner.reporting.run_folder import RunFolder
from tests.builders import build_qwen3, save_base
from tests.training.in_process import Work

MEGABYTE = 1_000_000
EACH_STEP = ("checkpoint.every_steps=1", "optimizer.max_steps=3")


class Steps:
    """Steps that want a checkpoint, at times that the test chooses.

    Args:
        seconds: that writing one takes.
        given: seconds until a kill; infinite for a run that only its steps end.
    """

    def __init__(
        self, folder: Path, *, seconds: float = 0.0, given: float = math.inf, **more: float
    ) -> None:
        self.now = 0.0
        self._seconds = seconds
        self._args = TrainingArguments(str(folder))
        self._state = TrainerState()
        self._callback = Checkpoints(
            Schedule(10**6, kill_in=given, margin=0, guesses={}, clock=self._clock),
            Ranks(),
            HeartbeatWriter(folder),
            RunDisk(folder, print),
            size=MEGABYTE,
            clock=self._clock,
            **more,
        )

    def _clock(self) -> float:
        return self.now

    def step(self, now: float, *, ending: bool = False, refused: bool = False) -> bool:
        """True if the step that ends at `now` writes one, or tries to where the disk refuses it."""
        self.now = now
        self._state.global_step += 1
        control = TrainerControl(should_save=True, should_training_stop=ending)
        self._callback.on_step_end(self._args, self._state, control)
        if control.should_save:
            self.now += self._seconds
            folder = Path(str(self._args.output_dir)) / f"checkpoint-{self._state.global_step}"
            if not refused:
                folder.mkdir(parents=True)
            self._callback.on_save(self._args, self._state, control)
        return control.should_save


def test_a_checkpoint_knows_the_training_time_until_then(tmp_path: Path) -> None:
    assert Steps(tmp_path).step(100.0)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.elapsed) == (1, 100.0)


def test_checkpoints_are_as_far_apart_as_is_set_but_for_the_last(tmp_path: Path) -> None:
    steps = Steps(tmp_path, seconds_apart=600)
    written = [steps.step(now, refused=now < 1000) for now in (100, 599, 600, 700, 1199, 1200)]
    assert written == [False, False, True, False, False, True]
    assert steps.step(1201, ending=True)


def test_until_a_kill_they_cost_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one by how fast the disk is, which a sample shows; the others by the last one."""
    monkeypatch.setattr(RunDisk, "seconds_for", lambda disk, size: 40 * size / MEGABYTE)
    steps = Steps(tmp_path, seconds=60, given=3600)
    written = [now for now in range(0, 3600, 100) if steps.step(now)]
    assert written == [800, 2100, 3400]  # 20 x 40 s; 20 x 60 s after each one's end
    assert 60 * len(written) <= 0.05 * 3600


def test_a_disk_that_refuses_a_sample_costs_the_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a quota that the free space does not show."""

    def full(disk: RunDisk, size: int) -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDisk, "seconds_for", full)
    steps = Steps(tmp_path, seconds=60, given=3600)
    assert not steps.step(800)
    assert "no checkpoint, as the disk refuses it: [Errno 28]" in capsys.readouterr().out
    monkeypatch.setattr(RunDisk, "seconds_for", lambda disk, size: 1.0)
    assert steps.step(1600)


def test_none_is_written_that_a_kill_would_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDisk, "seconds_for", lambda disk, size: 40 * size / MEGABYTE)
    steps = Steps(tmp_path, seconds=40, given=3600)
    assert not steps.step(3590, ending=True)
    assert steps.step(3500, ending=True)


def test_how_long_a_checkpoint_takes_is_learned_from_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((0.0, 2.0))
    monkeypatch.setattr(checkpoints, "SAMPLE_BYTES", 4 << 20)
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: next(now))
    assert RunDisk(tmp_path, print).seconds_for(40 << 20) == 20.0
    assert list(tmp_path.iterdir()) == []


def test_there_is_one_and_another_only_while_it_is_written(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    for now in range(3):
        assert steps.step(now)
        assert [file.parent.name for file in tmp_path.glob(f"*/{COMPLETE}")] == [
            f"checkpoint-{now + 1}"
        ]
    assert not (tmp_path / "checkpoint-2").exists()


def test_a_resumed_run_writes_them_as_often_as_it_is_set_now(work: Work) -> None:
    for every, steps in ((2, 2), (1, 3)):
        work.train(f"checkpoint.every_steps={every}", f"optimizer.max_steps={steps}")
        assert work.trainers[-1].state.save_steps == every
    assert work.steps == [1, 2, 3]


def test_the_base_is_not_a_checkpoint_to_continue_from(tmp_path: Path) -> None:
    for step, begun in ((0, False), (1, True)):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / COMPLETE).touch()
        assert has_checkpoint(tmp_path) is begun


@pytest.mark.parametrize("tuning", ["full", "lora", "full model.last_layers=1"])
def test_the_bytes_of_a_checkpoint_are_known_before_it_is_written(work: Work, tuning: str) -> None:
    work.train(*EACH_STEP, "optimizer.max_steps=1", *f"model.tuning={tuning}".split())
    assert work.checkpoint is not None
    names = ("*model*.safetensors", "optimizer.pt")
    files = [file for name in names for file in work.checkpoint.path.glob(name)]
    written = sum(file.stat().st_size for file in files)
    expected = checkpoint_bytes(work.trainers[0].model, zero=False)
    assert written == pytest.approx(expected, rel=0.1, abs=40_000)


def test_under_zero_a_parameter_takes_sixteen_bytes_in_bfloat16() -> None:
    model = build_qwen3()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert checkpoint_bytes(model.bfloat16(), zero=True) == 16 * count
    model.requires_grad_(False)  # weights alone, twice
    assert checkpoint_bytes(model, zero=True) == 4 * count


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk with room for one checkpoint of the tiny model and not for two: a tmpfs, or a stand-in
    where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    model = build_qwen3(tie_word_embeddings=False)
    room = int(1.6 * checkpoints.MARGIN * checkpoint_bytes(model, zero=False))
    words = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    if not mounted:

        def usage(at: Path) -> SimpleNamespace:
            held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            return SimpleNamespace(free=max(0, room - held))

        monkeypatch.setattr(
            checkpoints, "shutil", SimpleNamespace(disk_usage=usage, rmtree=shutil.rmtree)
        )
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_checkpoint_that_does_not_fit_is_left_out_with_one_line(
    work: Work, small_disk: Path
) -> None:
    """The one before stays whole, and training ends as it would have."""
    run_dir = small_disk / "run"
    result = work.train(*EACH_STEP, f"run_dir={run_dir}")
    assert result.output_dir == work.published
    assert [record.step for record in RunFolder(run_dir).read().steps] == [1, 2, 3]
    assert [file.parent.name for file in run_dir.glob(f"*/*/{COMPLETE}")] == ["checkpoint-1"]
    said = work.said.getvalue()
    for step in (2, 3):
        assert said.count(f"step {step}: no checkpoint, which needs") == 1


def test_a_disk_that_refuses_a_checkpoint_costs_no_more_than_that(
    work: Work, small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Something else has filled it after it was asked."""
    if not small_disk.is_mount():
        pytest.skip("no tmpfs may be mounted here")
    monkeypatch.setattr("miner.training.run.checkpoint_bytes", lambda model, zero: 0)
    run_dir = small_disk / "run"
    work.train(*EACH_STEP, f"run_dir={run_dir}")
    assert [record.step for record in RunFolder(run_dir).read().steps] == [1, 2, 3]
    assert [folder.name for folder in run_dir.glob("*/checkpoint-*")] == ["checkpoint-1"]
    assert has_checkpoint(run_dir)
    assert caplog.text.count("no checkpoint: ") == 2


@pytest.mark.parametrize(
    ("error", "ends_with"),
    [
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64"), OSError),
        (RuntimeError("basic_ios::clear: iostream error"), OSError),
        (SafetensorError("I/O error: No space left on device (os error 28)"), OSError),
        (RuntimeError("Connection closed by peer"), RuntimeError),
    ],
)
def test_a_disk_that_refuses_one_of_several_ranks_ends_the_attempt_as_a_disk_does(
    error: Exception, ends_with: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it; the next attempt goes on from the checkpoint before, as it was."""

    def refuse(*given: object) -> None:
        raise error

    monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", refuse)
    trainer = object.__new__(EpisodeTrainer)
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ends_with) as raised:
        trainer._save_checkpoint(None, None)
    assert type(raised.value) is ends_with


@pytest.mark.parametrize(
    ("output", "pushes", "kept"),
    [(None, False, True), ("/proc/model", False, False), ("/proc/model", True, True)],
    ids=["one disk", "another disk", "another disk, a server"],
)
def test_room_is_kept_for_what_is_published_or_pushed(output, pushes, kept, tmp_path, monkeypatch):
    """Both are as large as the base; weights on their way to a server are in the run folder."""
    base = save_base(tmp_path / "base")
    weights = (base / "model.safetensors").stat().st_size
    disk = RunDisk.beside(Path(output or tmp_path / "model"), base, tmp_path, print, pushes=pushes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * weights))
    assert bool(disk.lacks(int(1.5 * weights))) == kept
