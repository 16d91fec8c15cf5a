"""The examples, run as the scripts that they are, each for a step."""

import ast
import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from tests.environments.openenv.here import python_of_openenv
from tests.processes import Forked

ROOT = Path(__file__).resolve().parents[2]


def run_example(name: str, folder: Path, *arguments: str) -> str:
    """What it prints, run from `folder`."""
    process = Forked(folder, _script, name, str(folder), list(arguments))
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def _script(name: str, folder: str, arguments: list[str]) -> None:
    """As `python examples/NAME.py` from another folder: only the script's own is on the path."""
    path = ROOT / "examples" / f"{name}.py"
    os.chdir(folder)
    sys.path[:] = [str(path.parent), *(e for e in sys.path if e and Path(e).resolve() != ROOT)]
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")
    assert str(ROOT) in sys.path, "the script finds the repository only from within it"


def test_the_proposals_code_agent_is_looked_at_trained_and_looked_at(
    tmp_path: Path, model: Path
) -> None:
    said = run_example("code_agent_environment", tmp_path, "--model", str(model), "--steps", "5")
    assert said.count(" ?") >= 6
    assert "step 5/5 reward" in said
    assert "{" not in said


def test_the_proposals_own_environment_is_trained(tmp_path: Path, model: Path) -> None:
    said = run_example("custom_environment", tmp_path, "--model", str(model))
    assert "1 steps, mean loss" in said
    assert "{" not in said


@pytest.mark.skipif(
    not python_of_openenv().exists(), reason="OpenEnv is not installed: scripts/setup-openenv.sh"
)
def test_trls_first_openenv_example_runs_on_its_own_server(tmp_path: Path) -> None:
    """Its client is OpenEnv's own, which only that environment has."""
    command = [python_of_openenv(), ROOT / "examples/train_echo_trl.py", "--steps", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    rewards = re.findall(r"step \d/2 reward (\d\.\d\d)", run.stdout)
    assert len(rewards) == 2
    assert 0 < float(rewards[0]) < float(rewards[1]), "longer replies within a step"


def _cells(folder: str) -> None:
    """As Jupyter does: each code cell in the same namespace, with `await` at the top."""
    os.chdir(ROOT)
    os.environ.update(NOTEBOOK_WORK=folder, NOTEBOOK_BASE_STEPS="30", NOTEBOOK_STEPS="1")
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            made = compile("".join(cell["source"]), f"cell {number}", "exec", flags)
            if (waits := eval(made, namespace)) is not None:
                asyncio.run(waits)


def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    process = Forked(tmp_path, _cells, str(tmp_path / "work"))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "step 0: held-out score" in process.stdout
    assert "advantage" in process.stdout.rpartition("held-out score")[2]
    verify_model(tmp_path / "work" / "model", load=False)


def test_the_guessing_game_is_trained_on_from_nothing(tmp_path: Path) -> None:
    short = (
        "--base-steps", "30", "--out", "guess",
        "optimizer.max_steps=1", "rollout.groups_per_step=2",
    )  # fmt: skip
    said = run_example("train_guess", tmp_path, *short)
    assert "Guess: 96 episodes" in said
    assert "guess/run-0/report.html" in said
    verify_model(tmp_path / "guess" / "model-0", load=False)
    run = RunFolder(tmp_path / "guess" / "run-0").read()
    assert [record.step for record in run.steps] == [1]
    assert [record.environment for record in run.evaluations] == ["Guess", "Guess"]
