"""For all tests: one thread for torch, its builds in the repository, long files first."""

import gc
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from miner.background_loop import BackgroundLoop

REPOSITORY = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.skips", "pytester"]

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # read when TRL is imported
torch.set_num_threads(1)  # tests run on small machines beside others, and tiny models gain nothing
os.environ["OMP_NUM_THREADS"] = "1"  # and so in the processes that they start
# Where setup has built DeepSpeed's communication. Elsewhere a build that was killed may have left
# a lock, or other programs build something else.
os.environ["TORCH_EXTENSIONS_DIR"] = str(REPOSITORY / ".cache/torch_extensions")
hypothesis.settings.register_profile("busy", deadline=None)  # an example may take long there
hypothesis.settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end. Looking through it for garbage would take
    a third of a second each time, and trainers do so several times in each run."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked as long come first, so that no process is left alone with them at the end, and
    then the others that train: the last of all by name, they would be that otherwise."""
    items.sort(
        key=lambda item: (
            item.get_closest_marker("long") is None,
            item.path.parent.name != "training",
        )
    )


@pytest.fixture(autouse=True)
def _environment_kept() -> Iterator[None]:
    """No test leaves variables behind: with a world's, the next trainer would be a rank of it."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own reaction to SIGINT, also where tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
