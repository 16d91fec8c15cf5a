"""Commands start without the noise of libraries, and without those they may not need."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deepspeed_here import needs_deepspeed

IN_A_FRESH_PROCESS = """
import sys
from unittest import mock
import miner.__main__ as program

def saves_and_loads(out):
    import deepspeed
    from transformers import AutoModelForCausalLM
    from tests.builders import build_qwen3
    build_qwen3().save_pretrained(out)
    AutoModelForCausalLM.from_pretrained(out)

with mock.patch.object(program, "app", lambda: saves_and_loads(sys.argv[1])):
    program.main() if sys.argv[2] == "quiet" else program.app()
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["quiet", "loud"])
def test_no_command_shows_bars_or_deepspeeds_accelerator(tmp_path: Path, way: str) -> None:
    needs_deepspeed()
    words = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(tmp_path), way]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    shown = done.stdout + done.stderr
    for noise in ("Setting accelerator", "Writing model shards", "Loading weights"):
        assert (noise in shown) == (way == "loud")


def test_the_command_line_starts_without_large_packages() -> None:
    large = "{'torch', 'transformers', 'matplotlib'}"
    look = f"import sys, miner.__main__; print({large} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
