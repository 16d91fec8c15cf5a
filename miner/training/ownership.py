"""Ownership of a run's folders: one run at a time writes to a run_dir and to an output.dir.

Invariants:
* the process that starts the ranks owns the folders for all of them;
* the kernel ends the ownership with the process, however that ends;
* a start that is refused leaves nothing new in run_dir.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from miner.config.errors import ConfigurationError
from miner.config.run_files import HEARTBEAT_FILE, has_begun
from miner.config.settings import Settings
from miner.config.statuses import TrainerStatus
from miner.publishing.errors import LockedError
from miner.publishing.filesystem import exclusive_lock


@contextmanager
def owned(settings: Settings) -> Iterator[None]:
    """Hold run_dir and output.dir, each by a lock file `.NAME.owner` beside it.

    Raises: `ConfigurationError` that names the other process if one of them is held.
    """
    with ExitStack() as stack:
        stack.enter_context(held("run_dir", settings.run_dir))
        if settings.output.dir is not None:
            stack.enter_context(held("output.dir", settings.output.dir))
        yield


@contextmanager
def held(name: str, folder: Path) -> Iterator[None]:
    """Hold one folder, which need not exist. Raises: `ConfigurationError` as `owned`."""
    way_out = f"wait for its end, stop it, or name another {name}"
    with locked(folder, "owner", lambda owner: f"{name} {folder} is used by {owner}: {way_out}"):
        yield


@contextmanager
def locked(folder: Path, purpose: str, refusal: Callable[[str], str]) -> Iterator[None]:
    """Hold the lock file `.NAME.PURPOSE` beside `folder`, which need not exist.

    Args:
        refusal: owner -> message of the `ConfigurationError` that is raised where it is held.
    """
    path = folder.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(path.parent / f".{path.name}.{purpose}"))
        except LockedError as error:
            raise ConfigurationError(refusal(error.owner)) from None
        yield


@contextmanager
def undone_if_refused(run_dir: Path) -> Iterator[None]:
    """Remove what the block has made in `run_dir` if it refuses a run that has not begun.

    In a folder that was there before, the heartbeat stays for the watchdog.
    """
    before = {HEARTBEAT_FILE, *(child.name for child in _content(run_dir))}
    existed = run_dir.exists()
    try:
        yield
    except (ConfigurationError, typer.Exit) as end:
        status = end.exit_code if isinstance(end, typer.Exit) else TrainerStatus.REFUSED
        if status == TrainerStatus.REFUSED and not has_begun(run_dir):
            if not existed:
                shutil.rmtree(run_dir, ignore_errors=True)
            for child in _content(run_dir):
                if child.name not in before:
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        raise


def _content(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
