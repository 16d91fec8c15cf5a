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
    )


def test_a_baseline_is_evaluated_from_any_folder(tmp_path: Path) -> None:
    ended = run(tmp_path, "match", "--episodes", "5")
    assert ended.returncode == 0, ended.stderr
    assert "5 episodes over builtin" in ended.stdout
    assert (tmp_path / "runs" / "evaluate" / "evaluation.png").is_file()


def refusal(folder: Path, *arguments: str) -> str:
    """The one sentence with which the script refuses."""
    ended = run(folder, *arguments)
    assert ended.returncode == 2
    (sentence,) = ended.stderr.strip().splitlines()
    return sentence


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert refusal(tmp_path, "my-model").startswith("error: my-model holds no model")


def test_a_misspelt_baseline_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, "mtach", "--episodes", "5")
    assert "mtach is neither a baseline (random, match, highest, lowest) nor a folder" in sentence


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for arguments in ((), ("--episodes", "5")):
        assert "error: MODEL is missing" in refusal(tmp_path, *arguments)


def test_help_explains_it(tmp_path: Path) -> None:
    ended = run(tmp_path, "--help")
    assert ended.returncode == 0
    assert "MODEL_FOLDER" in ended.stdout
