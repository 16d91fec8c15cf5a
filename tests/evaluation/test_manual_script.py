"""The script for evaluating by hand: one command, nothing needed but the model."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manual_environment_eval.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ENVIRONMENT_SERVER_URLS"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_baseline_is_evaluated_from_any_folder(tmp_path: Path) -> None:
    ended = run(tmp_path, "match", "episodes=5")
    assert ended.returncode == 0, ended.stderr
    assert "5 episodes over builtin" in ended.stdout
    assert (tmp_path / "runs" / "evaluate" / "evaluation.png").is_file()


def test_what_cannot_be_meant_is_one_sentence(tmp_path: Path) -> None:
    ended = run(tmp_path, "--episodes", "5")
    assert ended.returncode == 2
    (sentence,) = ended.stderr.strip().splitlines()
    assert sentence.startswith("error: MODEL is missing")


def test_model_is_a_folder_an_endpoint_or_a_baseline(tmp_path: Path) -> None:
    arguments = runpy.run_path(str(SCRIPT), run_name="manual_environment_eval")["arguments"]
    assert arguments([str(tmp_path)]) == ["evaluate", f"model.path={tmp_path}"]
    assert arguments(["http://h:1/v1", "name=x"])[1:] == ["llm_url=http://h:1/v1", "name=x"]
    with pytest.raises(ValueError, match="MODEL is missing"):
        arguments([])
    with pytest.raises(ValueError, match=r"mtach is neither a baseline \(random, match, highest"):
        arguments(["mtach", "--episodes", "5"])
