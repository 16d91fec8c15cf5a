"""Verifying a model by loading it, in a separate Python process, on the CPU.

Why not in the caller's: DeepSpeed ZeRO-3 patches model loading in the process that trains, a copy
of the model must not stay in the trainer's memory, and the orchestrator does not import torch.
`python -m miner.publishing` is the other end; its last line of output is JSON.
It does not outlive the caller, whose folders a next attempt uses again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import miner
from miner.config.contract import FIRST_FORMAT_DTYPE, ServedDtype
from miner.lifeline import lifeline
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.structure import ModelReport

DEFAULT_TIMEOUT = 1800.0
"""Seconds; a 7 B model takes one to two minutes from a slow disk."""


def verify(
    path: Path,
    *,
    strict: bool = True,
    dtype: ServedDtype = FIRST_FORMAT_DTYPE,
    timeout: float = DEFAULT_TIMEOUT,
) -> ModelReport:
    """`verify_model(path, load=True, strict=strict, dtype=dtype)` in a fresh process.

    Raises: `UnverifiedModelError`; `PublishingError` if the process itself failed.
    """
    words = ("verify" if strict else "verify-base", str(path), dtype)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "miner.publishing", *words],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PublishingError(f"verifying {path} took more than {timeout:.0f} s.") from error
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
        result, error_text = answer["result"], answer["error"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        hint = " (killed: out of memory?)" if done.returncode < 0 else ""
        raise PublishingError(
            f"verifying {path} ended with status {done.returncode}{hint} and no answer:"
            f" {done.stderr.strip()[-500:]}"
        ) from error
    if error_text is not None:
        raise (UnverifiedModelError if answer.get("unverified") else PublishingError)(error_text)
    return ModelReport(**result | {"warnings": tuple(result["warnings"])})


def _environment() -> dict[str, str]:
    """The caller's environment and lifeline, without its GPUs and place in a distributed run."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
        and not name.startswith(("ACCELERATE_", "TORCHELASTIC_"))
    }
    root = str(Path(miner.__file__).resolve().parent.parent)
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    kept |= lifeline()
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
