"""Causes that keep a container from training: each has its status and its sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint.exit_status import ExitStatus
from tests.containers.harness import Miner, Place

pytestmark = pytest.mark.long

SCENARIOS: dict[str, dict[str, Any]] = {
    "model": {"job": {"--model": "acme/other"}},
    "servers": {"servers": "http://nobody:8000", "job": {"--hours-to-complete": "0.03"}},
    "disk": {"tmpfs": {"/app/checkpoints": "1m"}},
    "output": {"read_only": True, "tmpfs": {"/tmp": "16m"}},
}
ON_A_VOLUME = {"model", "servers"}


@pytest.fixture(scope="module")
def ended(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[int, list[str]]]]:
    """Status and log of every scenario; all run at the same time."""
    outputs: dict[str, Path] = {name: tmp_path_factory.mktemp("output") for name in ON_A_VOLUME}
    miners = {
        name: Miner(place, outputs.get(name), **options) for name, options in SCENARIOS.items()
    }
    yield {name: (miner.wait(), miner.log) for name, miner in miners.items()}
    for miner in miners.values():
        miner.remove()


@pytest.mark.parametrize(
    ("scenario", "status", "words"),
    [
        ("model", ExitStatus.MODEL, "/cache/models holds acme--tiny"),
        ("servers", ExitStatus.OK, "a model of"),
        ("disk", ExitStatus.DISK, "the model needs"),
        ("output", ExitStatus.OUTPUT, "cannot be written"),
    ],
)
def test_each_cause_has_its_status_and_its_sentence(
    ended: dict[str, tuple[int, list[str]]], scenario: str, status: ExitStatus, words: str
) -> None:
    ended_with, log = ended[scenario]
    assert ended_with == status, log
    assert log[-1].startswith(f"miner: exit {status.value} ({status.label}): ")
    assert words in log[-1]


def test_silent_servers_are_reported_and_the_base_is_published(
    ended: dict[str, tuple[int, list[str]]],
) -> None:
    _, log = ended["servers"]
    assert any("environment servers: 0 of 1 answer" in line for line in log)
