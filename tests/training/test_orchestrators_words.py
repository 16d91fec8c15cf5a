"""The trainer's reports to the orchestrator, read by the orchestrator's own functions."""

from pathlib import Path

import pytest
import torch

from entrypoint.restart import EndKind, end_of_exit
from entrypoint.run_plan import RunPlan
from miner.config.errors import ConfigurationError
from miner.config.heartbeat import HeartbeatWriter, read_heartbeat
from miner.environments import InfrastructureError, ProtocolError
from miner.inference.engines import EngineMemoryError
from miner.inference.sampler import EngineLostError
from miner.learning.update_guard import TrainingDivergedError
from miner.publishing.errors import PublishingError
from miner.training.rollout_function import RolloutFailedError
from miner.training.run import TrainResult
from tests.commands import status_of

ENDS = [
    (None, EndKind.PUBLISHED),
    (MemoryError("no room"), EndKind.OUT_OF_MEMORY),
    (torch.OutOfMemoryError("no room"), EndKind.OUT_OF_MEMORY),
    (EngineMemoryError("no room"), EndKind.ENGINE_OUT_OF_MEMORY),
    (RolloutFailedError("all episodes were lost"), EndKind.UNREACHABLE),
    (InfrastructureError("no server"), EndKind.UNREACHABLE),
    (ProtocolError("no game server"), EndKind.UNREACHABLE),
    (EngineLostError("no vLLM"), EndKind.INFERENCE_LOST),
    (ConfigurationError("a wrong setting"), EndKind.REFUSED),
    (TrainingDivergedError("not finite"), EndKind.CRASHED),
    (PublishingError("disk full"), EndKind.UNWRITTEN),
    (OSError(28, "No space left on device"), EndKind.UNWRITTEN),
]


@pytest.mark.parametrize(("error", "kind"), ENDS, ids=lambda value: type(value).__name__)
def test_the_orchestrator_understands_how_the_trainer_ended(
    error: Exception | None,
    kind: EndKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(*_: object) -> TrainResult:
        if error is not None:
            raise error
        return TrainResult(tmp_path, 3, 0.5)

    monkeypatch.setattr("miner.training.run.train", train)
    for check in ("checked_paths", "prepare_run"):
        monkeypatch.setattr(f"miner.training.preparation.{check}", lambda *_, **__: None)
    assert end_of_exit(status_of("train", f"run_dir={tmp_path}")).kind is kind
    told = capsys.readouterr().err
    assert error is None or str(error) in told
    assert "Traceback" not in told


def test_the_orchestrator_reads_the_trainers_heartbeat(tmp_path: Path) -> None:
    times = {"started_at": 0, "trainer_ends_at": 1, "ends_at": 2, "kill_at": 3}
    plan = RunPlan.model_validate(
        {"run_dir": tmp_path, "output_dir": tmp_path, "socket": tmp_path, **times}
    )
    plan.train_dir.mkdir()
    heart = HeartbeatWriter(plan.train_dir)
    for phase, step in (("rollout", 7), ("evaluation", 8)):
        heart.beat(phase, step)
        beat = read_heartbeat(plan.heartbeat_file, since=1.0)
        assert (beat.phase, beat.step) == (phase, step)
        assert beat.time == pytest.approx(plan.heartbeat_file.stat().st_mtime, abs=5.0)
    heart.beat("rollout")
    assert read_heartbeat(plan.heartbeat_file, since=1.0).step == 8
