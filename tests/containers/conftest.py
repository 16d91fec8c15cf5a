"""An engine, an image and a place to run it: made once, as far as this machine allows it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from tests.containers.harness import CLIENT, IMAGE, SMALL_IMAGE, EnvironmentServer, Network, Place

FOLDER = Path(__file__).resolve().parent
SCRIPTS = FOLDER.parents[1] / "scripts" / "docker"
IMPOSSIBLE = 3  # exit status of prepare.sh


@dataclass(frozen=True)
class Made:
    """What came of making engine and image; the latter is None where it was not made."""

    engine: subprocess.CompletedProcess[str]
    image: subprocess.CompletedProcess[str] | None


MAKING = pytest.StashKey[Future[Made]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Containers come after the other long files, which run while their image is made."""
    ours = [item for item in items if FOLDER in item.path.parents]
    others = [item for item in items if item not in ours]
    first = sum(item.get_closest_marker("long") is not None for item in others)
    items[:] = [*others[:first], *ours, *others[first:]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to make engine and image if a test is going to need them."""
    needed = any("engine" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        session.config.stash[MAKING] = ThreadPoolExecutor(1).submit(_make)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Made:
    """A Docker engine with a base image, or a skip that says why there is none."""
    made = request.config.stash[MAKING].result()
    if made.engine.returncode == IMPOSSIBLE:
        pytest.skip(made.engine.stderr.strip())
    assert made.engine.returncode == 0, made.engine.stderr
    return made


@pytest.fixture(scope="session")
def image(engine: Made) -> None:
    """The small image, built from this working tree, unless MINER_IMAGE names another."""
    assert engine.image is None or engine.image.returncode == 0, engine.image.stderr


@pytest.fixture(scope="session")
def place(image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An internal network with an environment server, and a cache with a base model."""
    from tests.small_base import small_base

    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o755)
    small_base(cache / "models" / "acme--tiny")
    with Network(dict(CLIENT), {"internal": True}) as network:
        place = Place(network, cache, "http://environment:8000")
        server = EnvironmentServer(place, "environment")
        yield place
        server.remove()


def _make() -> Made:
    with FileLock(Path(tempfile.gettempdir(), "goofspiel-miner-image.lock")):  # the suite's others
        engine = _script("prepare.sh")
        if engine.returncode or IMAGE != SMALL_IMAGE:
            return Made(engine, None)
        return Made(engine, _script("image-cpu.sh"))


def _script(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
