"""SIGKILL at ten random instants: a loadable model lies there each time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.containers.harness import Miner, Place

KILLS_STARTING, KILLS_TRAINING = 7, 3
ENDLESS = {"optimizer.max_steps": "1000"}
START_SECONDS, STEP_SECONDS = 12.0, 4.0


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
    """Kill it, load what it leaves, start it again."""
    miner.engine.kill()
    miner.wait()
    assert miner.verified().loaded, miner.log
    miner.engine.start()


def test_sigkill_at_any_instant_leaves_a_loadable_model(miners: list[Miner]) -> None:
    def while_starting(miner: Miner) -> None:
        moments = random.Random(1)
        for _ in range(KILLS_STARTING):
            threading.Event().wait(moments.uniform(0, START_SECONDS))  # the test's input
            kill_and_look(miner)

    def while_training(miner: Miner) -> None:
        moments = random.Random(2)
        for _ in range(KILLS_TRAINING):
            miner.wait_for("/1000 reward")
            threading.Event().wait(moments.uniform(0, STEP_SECONDS))  # the test's input
            kill_and_look(miner)

    with ThreadPoolExecutor(2) as pool:
        killings = [pool.submit(while_starting, miners[0]), pool.submit(while_training, miners[1])]
        for killing in killings:
            killing.result()
