"""vLLM itself in the trainer's process, on a CPU."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from miner.reporting.run_folder import RunFolder
from tests.real_vllm.here import needs_real_vllm, python_with_vllm
from tests.real_vllm.models import (
    LONG_PROMPTS,
    PUSHES,
    TOLERANCE,
    assert_sampled_from,
    model,
    save_model,
)
from tests.rollout.sampling import PROMPTS

needs_real_vllm()
pytestmark = pytest.mark.long


def with_vllm(*words: str) -> subprocess.CompletedProcess[str]:
    """With as many threads as vLLM takes by default."""
    os.environ.pop("OMP_NUM_THREADS", None)
    return python_with_vllm(*words, ENVIRONMENT_SERVER_URLS="")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("colocated")
    done = with_vllm("-m", "tests.real_vllm.colocated_program", str(out))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((out / "said.json").read_text())
    return result


@pytest.mark.parametrize(
    ("name", "seed", "temperature"),
    [
        ("base", 0, 1.0),
        ("cooler", 0, 0.7),
        ("in parts", 0, 1.0),
        ("weights 1", 1, 1.0),
        ("weights 2", 2, 1.0),
    ],
)
def test_logprobs_are_those_of_the_weights_it_has(
    said: dict[str, Any], name: str, seed: int, temperature: float
) -> None:
    for prompt, sample in zip(
        LONG_PROMPTS if name == "in parts" else PROMPTS, said[name], strict=True
    ):
        assert_sampled_from(
            model(seed, tied=False), prompt, sample["token_ids"], sample["logprobs"], temperature
        )


def test_requests_without_a_waiting_caller_are_dropped(said: dict[str, Any]) -> None:
    assert said["cache emptied 1"] is True  # vLLM refuses while any request runs


def test_pushes_leave_the_frozen_base_as_it_was_in_the_trainers_dtype(
    tmp_path: Path,
) -> None:
    """The base is float16 on disk; vLLM has the merged weights in float32, as they are trained."""
    done = with_vllm("-m", "tests.real_vllm.pushes_program", str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    before, after = said["frozen"]
    assert before == after
    assert said["dtype"] == "torch.float32"
    merged = model(tied=False)
    merged.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    for prompt, sample in zip(PROMPTS, said["samples"], strict=True):
        assert sample["weight_version"] == PUSHES
        assert_sampled_from(merged, prompt, sample["token_ids"], sample["logprobs"])


def test_trls_own_engine_samples_from_the_weights_that_trl_sent(tmp_path: Path) -> None:
    done = with_vllm("-m", "tests.real_vllm.trl_program", str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert [each["context"] for each in said] == [512] * 12
    assert max(each["off"] for each in said) < TOLERANCE


def test_training_by_two_ranks_runs_from_its_first_to_its_last_step(tmp_path: Path) -> None:
    """The engine holds its weights as they are trained, and samples at the temperature that is
    trained at."""
    settings = {
        "run_dir": tmp_path / "run",
        "output.dir": tmp_path / "out",
        "model.path": save_model(tmp_path / "base"),
        "environment.channel": "builtin",
        "environment.deck_sizes": "[8]",
        "rollout.engine": "vllm_colocated",
        "rollout.groups_per_step": 2,
        "rollout.temperature": 0.7,
        "rollout.max_episode_tokens": 2400,
        "rollout.memory_share": 0.05,
        "optimizer.max_steps": 2,
        "optimizer.micro_batch_tokens": 2400,
        "evaluation.episodes": 10,
        "threads": 1,
    }
    done = with_vllm(
        *("-m", "miner", "train", "--processes", "2"),
        *(f"{key}={value}" for key, value in settings.items()),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    steps = RunFolder(tmp_path / "run").read().steps
    assert [record.step for record in steps] == [1, 2]
    gaps = [record.metrics["sampling/sampling_logp_difference/mean"] for record in steps]
    assert max(gaps) < 1e-3
    assert (tmp_path / "out/model.safetensors").exists()


def test_every_call_that_is_made_fits_the_installed_vllm(said: dict[str, Any]) -> None:
    assert said["misfits"] == []
