"""SIGKILL where something is being written: a loadable model lies there each time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.containers.harness import Miner, Place

pytestmark = pytest.mark.long

ENDLESS = {"optimizer.max_steps": "1000"}
WHILE_STARTING = ("attempt 1 started", "channel")
"""Lines with which a container that starts again says how far it is."""


@pytest.fixture
def miners(place: Place, tmp_path: Path) -> Iterator[list[Miner]]:
    """Two runs that have published their base model: before that there is nothing to keep."""
    started = [Miner(place, tmp_path / name, settings=ENDLESS) for name in ("first", "second")]
    for miner in started:
        miner.wait_for("channel")
    yield started
    for miner in started:
        miner.remove()


def kill_and_look(miner: Miner) -> None:
    """Kill it, load what it leaves."""
    miner.engine.kill()
    miner.wait()
    assert miner.verified().loaded, miner.log


def unfinished_checkpoint(miner: Miner) -> Callable[[], bool]:
    """True if a checkpoint lies there that is not complete, as while it is written."""
    checkpoints = miner.model.parent / ".run-repo-1/train/checkpoints"

    def lies_there() -> bool:
        folders = checkpoints.glob("checkpoint-*")
        return any(not (folder / "complete.json").exists() for folder in folders)

    return lies_there


def test_sigkill_leaves_a_loadable_model(miners: list[Miner]) -> None:
    def while_starting(miner: Miner) -> None:
        kill_and_look(miner)
        for line in WHILE_STARTING:
            miner.engine.start()
            miner.wait_for(line)
            kill_and_look(miner)

    def while_training(miner: Miner) -> None:
        miner.wait_for("/1000 reward")
        kill_and_look(miner)
        miner.engine.start()
        miner.wait_for("/1000 reward")
        miner.wait_until(unfinished_checkpoint(miner))
        kill_and_look(miner)
        miner.engine.start()
        miner.wait_for("/1000 reward")  # what the kill left half written does not hold it up

    with ThreadPoolExecutor(2) as pool:
        killings = [pool.submit(while_starting, miners[0]), pool.submit(while_training, miners[1])]
        for killing in killings:
            killing.result()
