"""A whole job in a container under the tournament's limits, and what happens to it meanwhile."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from entrypoint.exit_status import ExitStatus
from tests.containers.harness import Miner, Place

pytestmark = pytest.mark.long

Start = Callable[..., Miner]
Story = Callable[[Start, Place], Miner]
STEPS = {"optimizer.max_steps": "2"}
ENDLESS = {"optimizer.max_steps": "1000"}


def on_a_read_only_root(start: Start, place: Place) -> Miner:
    return start(servers="", settings=STEPS, read_only=True, tmpfs={"/tmp": "256m"})


def stopped(start: Start, place: Place) -> Miner:
    """As planned for Docker's default of ten seconds, but for the SIGKILL at their end: whether a
    machine is fast enough is not what is tested."""
    miner = start(settings=ENDLESS)
    miner.wait_for("step 1/")
    miner.engine.kill(signal="SIGTERM")
    return miner


STORIES: tuple[Story, ...] = (on_a_read_only_root, stopped)


def test_a_disk_that_fills_up_in_mid_run_costs_no_model(place: Place) -> None:
    """The output volume takes no byte more after the first step; the base model lies there."""
    miner = Miner(place, None, settings=ENDLESS, tmpfs={"/app/checkpoints": "128m"})
    try:
        miner.wait_for("step 1/")
        filled = miner.engine.exec_run("dd if=/dev/zero of=/app/checkpoints/filler")
        assert b"No space left" in filled.output
        miner.wait_for("waiting for room on the disk")
        miner.engine.kill(signal="SIGTERM")  # else it waits for room to its limit
        assert miner.wait() == ExitStatus.OK, miner.log
        assert miner.log[-1].startswith("miner: exit 0 (ok): a model of "), miner.log
    finally:
        miner.remove()


@pytest.fixture(scope="module")
def told(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Story], Miner]]:
    """The miner of a story that has come to its end; all stories begin at the same time."""
    started: list[Miner] = []

    def tell(story: Story, output: Path) -> Miner:
        def start(**options: Any) -> Miner:
            started.append(Miner(place, output, **options))
            return started[-1]

        return story(start, place)

    with ThreadPoolExecutor(len(STORIES)) as pool:
        outputs = [tmp_path_factory.mktemp("output") for _ in STORIES]
        ends = dict(zip(STORIES, map(pool.submit, repeat(tell), STORIES, outputs), strict=True))

        def end_of(story: Story) -> Miner:
            miner = ends[story].result()
            assert miner.wait() == ExitStatus.OK, miner.log
            assert miner.log[-1].startswith("miner: exit 0 (ok): a model of ")
            assert miner.verified().loaded
            return miner

        yield end_of
    for miner in started:
        miner.remove()


def steps_of(miner: Miner) -> list[int]:
    records = (miner.model.parent / ".run-repo-1/train/metrics.jsonl").read_text().splitlines()
    return [json.loads(record)["step"] for record in records]


def test_a_short_job_trains_publishes_and_exits_0(told: Callable[[Story], Miner]) -> None:
    """Also where nothing but the output and /tmp can be written."""
    miner = told(on_a_read_only_root)
    assert steps_of(miner) == [1, 2]
    assert "loaded in float16" in miner.log[-1]


def test_nothing_but_the_output_and_tmp_is_written(told: Callable[[Story], Miner]) -> None:
    """A container that may write anywhere. A file put into an emptied `/tmp` shows up."""
    engine, archive = told(stopped).engine, io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("seen"))
    engine.put_archive("/tmp", archive.getvalue())
    changed = {entry["Path"] for entry in engine.diff()}
    assert "/tmp/seen" in changed
    assert {path for path in changed if not path.startswith("/tmp")} == set()


def test_a_job_without_servers_plays_in_its_own_process(told: Callable[[Story], Miner]) -> None:
    miner = told(on_a_read_only_root)
    assert any("channel builtin" in line for line in miner.log)


def test_docker_stop_publishes_and_exits_0(told: Callable[[Story], Miner]) -> None:
    miner = told(stopped)
    assert "asked to stop by SIGTERM" in miner.log[-1]
    assert steps_of(miner)[0] == 1
