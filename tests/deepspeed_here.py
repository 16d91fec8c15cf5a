"""DeepSpeed on a machine without GPUs: whether it can run, and how it is configured."""

import json
import shutil
from pathlib import Path

import pytest


def needs_deepspeed() -> None:
    """Skip the calling test, with the reason, where DeepSpeed cannot run."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: make setup")
    if shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles its communication for CPUs, and there is no g++")


def deepspeed_file(folder: Path, stage: int) -> Path:
    """A configuration of ZeRO's `stage`; the sizes of batches are the trainer's."""
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": stage == 3}
    auto = (
        *("gradient_clipping", "gradient_accumulation_steps"),
        *("train_micro_batch_size_per_gpu", "train_batch_size"),
    )
    file = folder / f"zero{stage}.json"
    file.write_text(json.dumps({"zero_optimization": zero, **dict.fromkeys(auto, "auto")}))
    return file
