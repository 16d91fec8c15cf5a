"""scripts/gpu_check.sh on machines that tests make up: which stages run, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint.job import parse_invocation
from entrypoint.trainer_settings import PlannedSettings
from miner.config.settings import Settings, check_divides

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/gpu_check.sh"

PYTHON = """#!/usr/bin/env bash
# The real Python for everything but what needs a GPU.
case "$*" in
*"import vllm"* | *"import deepspeed"*) exit {bare} ;;
*"import torch"*) echo "2.13.0+cu130 True" ;;
*"miner train"*)
    echo "$CUDA_VISIBLE_DEVICES: $*" >>"$OUT/visible"
    case "$*" in *{broken}*) echo "CUDA error: out of luck"; exit 1 ;; esac
    for word in "$@"; do case $word in run_dir=*) mkdir -p "${{word#run_dir=}}"
        printf '{metrics}\\n' >"${{word#run_dir=}}/metrics.jsonl" ;; esac; done ;;
*vllm_surface*) echo "40 of 40 fit" ;;
*gpu_bases*) echo "16 of 16 bases" ;;
*tiny_model*) mkdir -p "${{@: -1}}"; echo made ;;
*"-m entrypoint --task-id"*)
    echo "$*" >>"$OUT/jobs"
    test -d "$MINER_CACHE_DIR/models/gpu-check" && echo "miner: exit 0 (ok): handed over" ;;
*) exec {real} "$@" ;;
esac
"""
METRICS = [
    {
        "seconds": 1.5,
        "tokens_per_second": 2000.0,
        "reward": 0.25,
        "lost_episodes": 0,
        "metrics": {"sampling/sampling_logp_difference/mean": gap},
    }
    for gap in (0.0123, 0.0045)
]


def run(
    tmp_path: Path,
    *,
    gpus: int,
    vllm: bool = True,
    broken: str = "nothing-is",
    reward: float | None = 0.25,
    model: tuple[str, ...] = (),
):
    """The script's exit status and its last lines by stage.

    Args:
        vllm: whether it is installed, and DeepSpeed beside it.
        reward: of the last step.
        model: the script's argument, if any.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    texts = {
        "nvidia-smi": "#!/bin/sh\n" + "echo 'NVIDIA H100, 580.1'\n" * gpus,
        "vllm": "#!/bin/sh\nexec sleep 60\n",
        "python": PYTHON.format(
            bare=int(not vllm),
            broken=broken,
            metrics="\\n".join(map(json.dumps, (METRICS[0], METRICS[1] | {"reward": reward}))),
            real=sys.executable,
        ),
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHON": str(programs / "python"),
        "OUT": str(tmp_path / "out"),
    }
    words = ["bash", str(SCRIPT), *model]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    table = done.stdout.rpartition("\n\n")[2].splitlines()[1:]
    return done.returncode, {line[:34].strip(): line[35:] for line in table}


@pytest.fixture(autouse=True)
def all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def planned_job(line: str) -> Settings:
    """The settings that the orchestrator plans with for a job by its words."""
    dataset = line.partition("--dataset-type ")[2].partition(" --task-type")[0]
    words = ("--task-id", "check", "--model", "m", "--expected-repo-name", "r")
    servers = {"ENVIRONMENT_SERVER_URLS": "http://127.0.0.1:1"}
    hours = ("--hours-to-complete", "0.25", "--dataset-type", dataset)
    return PlannedSettings(parse_invocation((*words, *hours), servers), 500_000_000).settings


@pytest.mark.parametrize(
    ("gpus", "vllm", "ran", "reward", "shown"),
    [
        (2, True, {"colocated", "server"}, 0.254, "0.25"),
        (1, True, {"colocated"}, 0.25, "0.25"),
        (2, False, set(), None, "none"),  # as of a step without own episodes
    ],
)
def test_it_runs_what_the_machine_can_run(
    tmp_path: Path, gpus: int, vllm: bool, ran: set[str], reward: float | None, shown: str
) -> None:
    every_stage = gpus > 1 and vllm
    model = (str(tmp_path),) if every_stage else ()
    status, table = run(tmp_path, gpus=gpus, vllm=vllm, reward=reward, model=model)
    assert status == 0, table
    for name in ("transformers, float32", "transformers, bfloat16", "transformers, LoRA"):
        assert table[name].startswith("ok")
        gaps = "logprob gap 0.0123 in the first step, 0.0045 in the last"
        assert f"reward {shown}, lost episodes 0, {gaps}" in table[name]
    engines = {"colocated": "vLLM colocated, 1 GPU", "server": "vLLM server + trainer, 2 GPUs"}
    for name, stage in engines.items():
        assert table[stage].split()[0] == ("ok" if name in ran else "skipped")
    assert ("the same, LoRA" in table) == ("weights of every kind of base" in table) == vllm
    if vllm:
        duels = "ok" if model else "skipped"
        assert table["the same, duels, 512 tokens"].split()[0] == duels
        assert ("the same, first from teachers" in table) == bool(model)
        jobs = [planned_job(line) for line in (tmp_path / "out/jobs").read_text().splitlines()]
        assert [job.environment.channel for job in jobs] == ["auto", "duel"][: 1 + bool(model)]
        assert all(job.demonstrations.share > 0 for job in jobs[1:])
    lines = (tmp_path / "out/visible").read_text().splitlines()
    for words in (line.partition(": ")[2].split() for line in lines):
        settings = Settings.load(None, [word for word in words if "=" in word], environ={})
        check_divides(settings, int(words[words.index("--processes") + 1]))
    ranks = table["transformers, 2 ranks, ZeRO-2"]
    assert ranks.split()[0] == ("ok" if every_stage else "skipped")


def test_only_the_stages_that_are_named_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they need."""
    monkeypatch.setenv("ONLY", "bfloat16|LoRA$")
    status, table = run(tmp_path, gpus=1)
    assert status == 0, table
    done = {name for name, result in table.items() if result.startswith("ok")}
    chosen = {"transformers, bfloat16", "transformers, LoRA", "the same, LoRA"}
    assert done == {"the demo's base model", *chosen}


def test_a_name_that_no_stage_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY", "bfloat17")
    assert run(tmp_path, gpus=1)[0] == 3


def test_no_process_sees_more_gpus_than_its_own(tmp_path: Path) -> None:
    """torch would spread batches over what it sees."""
    status, table = run(tmp_path, gpus=4)
    assert status == 0, table
    done = {name for name, result in table.items() if result.startswith("ok")}
    assert {f"vLLM server + 2 ranks, ZeRO-{stage}" for stage in (2, 3)} < done
    lines = (tmp_path / "out/visible").read_text().splitlines()
    for visible, _, command in (line.partition(": ") for line in lines):
        assert f"--processes {len(visible.split(','))} " in command
    assert any(line.startswith("1,2: ") for line in lines)  # vLLM has GPU 0
    assert any(line.startswith("2: ") for line in lines)  # two engines have GPUs 0 and 1
    assert table["the orchestrator, all GPUs"].endswith("miner: exit 0 (ok): handed over")


def test_gpus_that_the_caller_may_not_have_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a model's folder is meant from where the caller is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5e,6")
    monkeypatch.chdir(tmp_path.parent)
    status, table = run(tmp_path, gpus=8, model=(tmp_path.name,))
    assert status == 0, table
    assert table["vLLM server + 2 ranks, ZeRO-2"].startswith("ok")
    lines = (tmp_path / "out/visible").read_text().splitlines()
    used = {line.partition(": ")[0] for line in lines}
    assert used == {"4", "4,GPU-5e", "GPU-5e", "GPU-5e,6", "6"}
    assert all(f"model.path={tmp_path} " in line for line in lines)


def test_a_model_that_is_not_there_is_not_replaced_by_the_demos(tmp_path: Path) -> None:
    status, _ = run(tmp_path, gpus=1, model=(str(tmp_path / "away"),))
    assert status == 2
    assert not (tmp_path / "out/visible").exists()


def test_a_stage_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    status, table = run(tmp_path, gpus=1, broken="bfloat16-model")
    assert status == 1
    assert "out of luck" in table["transformers, bfloat16"]
    assert table["transformers, bfloat16"].startswith("FAILED")
    assert table["vLLM colocated, 1 GPU"].startswith("ok")


def test_without_a_gpu_it_does_not_claim_to_have_checked_anything(tmp_path: Path) -> None:
    status, table = run(tmp_path, gpus=0, vllm=False)
    assert status == 3
    assert all(result.startswith("skipped") for result in table.values())
