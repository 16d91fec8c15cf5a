"""`vllm serve` itself and the trainer, started and restarted as planned, on a CPU."""

import os
import signal
import time
from pathlib import Path

import pytest
import requests

from tests.entrypoint.two_programs import STEPS, TwoPrograms, two_programs
from tests.real_vllm.here import (
    BIN,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    MEMORY_SHARE,
    needs_real_vllm,
)
from tests.small_base import small_base

needs_real_vllm()
pytestmark = pytest.mark.long


def weight_version(run: TwoPrograms) -> str:
    """What the server calls its weights; "" while it does not answer."""
    try:
        reply = requests.get(f"{run.server}/weight_info", timeout=60)
    except (requests.ConnectionError, requests.Timeout):
        return ""
    return str(reply.json()["weight_version"])


def servers(base: Path) -> list[int]:
    """Process ids of `vllm serve BASE`, without the program that keeps it together."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:4] == [str(BIN / "vllm").encode(), b"serve", str(base).encode()]:
            found.append(int(file.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def engine_of(server: int) -> list[int]:
    """Its other processes, which hold the model."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [int(child) for child in children]


def test_the_whole_server_is_replaced_when_its_first_process_is_killed(tmp_path: Path) -> None:
    """After the first update; what it had started is gone, and the same trainer goes on."""
    base = small_base(tmp_path / "base")
    with two_programs(
        tmp_path,
        base,
        (str(BIN / "vllm"),),
        memory_share=MEMORY_SHARE,
        flags=CPU_FLAGS,
        environment=CPU_ENVIRONMENT,
    ) as run:
        while weight_version(run) != "1":
            assert run.process.poll() is None, run.end()[1]
            time.sleep(0.1)
        [server] = servers(base)
        engine = engine_of(server)
        assert engine
        os.kill(server, signal.SIGKILL)
        while any(alive(pid) for pid in engine):  # pytest's limit would find one that lives on
            time.sleep(0.05)
        status, output = run.end()
        assert status == 0, output
        assert "attempt 2" not in output
        steps = run.steps()
        assert [record.step for record in steps] == list(range(1, STEPS + 1))
        assert all(record.lost_episodes == 0 for record in steps)
        assert any(record.cached_tokens > 0 for record in steps)  # of a chat's turns before
        gaps = [record.metrics["sampling/sampling_logp_difference/max"] for record in steps]
        assert max(gaps) < 1e-3  # each step was sampled with the trainer's own weights
        assert not servers(base)
