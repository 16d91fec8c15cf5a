"""A real trainer under the real supervisord, killed in mid-run: attempt 2 goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from entrypoint.run_plan import RunPlan
from miner.config.settings import Settings, to_toml
from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from tests.entrypoint.plans import run_plan
from tests.training.in_process import TINY, working_in

FAKES = Path(__file__).parent / "fakes"
REPOSITORY = FAKES.parents[2]
STEPS = 2

pytestmark = pytest.mark.long


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with working_in(tmp_path) as work:
        return work.base


def plan_for(folder: Path, base: Path) -> RunPlan:
    """A run whose only checkpoint is that of its last step: attempt 2 has nothing left to train."""
    plan = run_plan(folder, poll_seconds=0.1)
    plan.train_dir.mkdir(parents=True)
    plan.output_dir.parent.mkdir()
    overrides = [
        *TINY,
        f"model.path={base}",
        f"output.dir={plan.output_dir}",
        f"run_dir={plan.train_dir}",
        f"optimizer.max_steps={STEPS}",
        f"checkpoint.every_steps={STEPS}",
    ]
    plan.settings_file.write_text(to_toml(Settings.load(None, overrides, environ={})))
    plan.write()
    return plan


def test_attempt_2_continues_with_the_weights_that_attempt_1_had(
    tmp_path: Path, base: Path
) -> None:
    plan = plan_for(tmp_path / "container", base)
    trainer = [sys.executable, str(FAKES / "dying_trainer.py"), "train"]
    trainer += ["--config", str(plan.settings_file)]
    done = subprocess.run(
        [
            *(sys.executable, str(FAKES / "container.py"), str(plan.plan_file)),
            json.dumps({"trainer": trainer}),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "ENVIRONMENT_SERVER_URLS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "it was killed from outside" in said
    assert said.count("trainer: attempt") == 2
    assert f"resuming from step {STEPS}" in said

    assert verify_model(plan.output_dir, load=False)
    steps = [record.step for record in RunFolder(plan.train_dir).steps.read()[0]]
    assert steps == list(range(1, STEPS + 1))  # none was trained again
    checkpoint = plan.train_dir / "checkpoints" / f"checkpoint-{STEPS}"
    of_attempt_1 = load_file(checkpoint / "model.safetensors")
    of_attempt_2 = load_file(plan.train_dir / "weights.safetensors")
    begun_with = load_file(base / "model.safetensors")
    assert of_attempt_1.keys() == of_attempt_2.keys() == begun_with.keys()
    assert all(torch.equal(of_attempt_2[name], tensor) for name, tensor in of_attempt_1.items())
    assert any(not torch.equal(begun_with[name], t) for name, t in of_attempt_1.items())
