"""GPUs stay unused until a person switches them on, and then as far as the trainer can use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint import main
from entrypoint.inventory import pretend_hardware
from entrypoint.job import parse_invocation


@pytest.mark.parametrize(
    ("switch", "layout", "gpus", "said"),
    [
        (
            {},
            "cpu",
            0,
            "8 x NVIDIA H100 left unused: training on GPUs is off unless MINER_GPU_ENGINES=1",
        ),
        ({"MINER_GPU_ENGINES": "0"}, "cpu", 0, "MINER_GPU_ENGINES=1"),
        ({"MINER_GPU_ENGINES": "1"}, "split", 2, "6 of 8 GPUs left unused"),
    ],
)
def test_gpus_are_used_only_when_switched_on(
    switch: dict[str, str],
    layout: str,
    gpus: int,
    said: str,
    roots: dict[str, str],
    arguments: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main, "detect_hardware", lambda environ: pretend_hardware("8xH100-80GB"))
    invocation = parse_invocation(arguments())
    prepared = main.prepare(invocation, time.time(), {**os.environ, **roots, **switch})
    assert prepared.topology.layout == layout
    assert len(prepared.hardware.gpus) == gpus
    assert said in capsys.readouterr().out
    names = {program.name for program in prepared.programs}
    assert ("inference" in names) == (layout == "split")
    assert Path(prepared.settings["model"]["path"]).is_dir()
