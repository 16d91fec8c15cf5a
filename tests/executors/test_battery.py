"""Code that attacks: contained with Landlock and without, and the sandbox still answers."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miner.executors.jail.kernel import landlock_version
from tests.executors.attacks import ATTACKS, BREACH, PREAMBLE
from tests.executors.battery import SECRET, battery

TIERS = {"landlock": True, "no landlock": False}
SEEN_TO_WORK = (
    "vfork by hand", "subprocess", "shell", "write a file", "append to a file", "chmod", "rename",
    "truncate", "unlink", "symlink", "fifo", "memfd", "passwd", "the model",
    "the model by a path alone", "the miner's environment", "list /", "UDP",
    "descriptors by socket", "limits by hand",
)  # fmt: skip


@pytest.fixture(scope="module", params=TIERS)
def found(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    if TIERS[request.param] and not landlock_version():
        pytest.skip("this kernel has no Landlock")
    return asyncio.run(battery(landlock=TIERS[request.param]))


@pytest.mark.parametrize("attack", [attack.name for attack in ATTACKS])
def test_the_attack_is_contained(found: dict[str, list[str]], attack: str) -> None:
    assert found[attack] == []


@pytest.mark.parametrize("name", SEEN_TO_WORK)
def test_the_attack_is_one_where_nothing_contains_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    code = PREAMBLE + next(attack.code for attack in ATTACKS if attack.name == name)
    code = code.replace("FOLDER", str(tmp_path)).replace("MINER", str(os.getpid()))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert BREACH in ran.stdout, ran.stderr
