"""The script for evaluating by hand: one command, nothing needed but the model."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manual_environment_eval.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ENVIRONMENT_SERVER_URLS"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_baseline_is_evaluated_from_any_folder(tmp_path: Path) -> None:
    ended = run(tmp_path, "match", "--episodes", "5")
    assert ended.returncode == 0, ended.stderr
    assert "5 episodes over builtin" in ended.stdout
    assert (tmp_path / "runs" / "evaluate" / "evaluation.png").is_file()


def test_what_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    ended = run(tmp_path, "my-model")
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("error: my-model holds no model")


def test_without_a_model_it_explains_itself(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 1
    assert "MODEL_FOLDER" in ended.stderr
