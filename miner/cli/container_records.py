"""A container's records, copied by `docker cp`, also of one that has ended."""

import json
import re
import shutil
import subprocess
import threading
from itertools import pairwise
from pathlib import Path

from miner.config.contract import CHECKPOINTS_DIR
from miner.config.errors import ConfigurationError
from miner.config.run_files import EPISODES_FILE, HEARTBEAT_FILE

FILES = (
    "settings.toml",
    "metrics.jsonl",
    "evaluations.jsonl",
    "probe.json",
    EPISODES_FILE,
    HEARTBEAT_FILE,
)
COPY_EVERY_S = 5.0

_NAME = re.compile(r"([\w][\w.-]*)(?::(/.+))?")


class ContainerRecords:
    """Copies of the records of a run in a container.

    Args:
        folder: gets the copies.

    Raises: `ConfigurationError` where the run's folder in the container is not known.
    """

    def __init__(self, container: str, run_dir: str | None, folder: Path) -> None:
        self._container, self._folder = container, folder
        self._run_dir = run_dir or _run_dir(container)
        folder.mkdir(parents=True, exist_ok=True)

    def copy(self) -> None:
        """Copy what is there, and of a run that was begun again no file of the one before; a
        container that is gone leaves the copies as they are."""
        for name in FILES:
            source = f"{self._container}:{self._run_dir}/{name}"
            copied = _docker("cp", source, str(self._folder))
            if copied.returncode and "Could not find the file" in copied.stderr:
                (self._folder / name).unlink(missing_ok=True)

    def follow(self) -> None:
        """Copy every few seconds, until this process ends."""

        def copies() -> None:
            while True:
                threading.Event().wait(COPY_EVERY_S)
                self.copy()

        threading.Thread(target=copies, daemon=True).start()


def container_named(text: str) -> tuple[str, str | None] | None:
    """Container and run folder that `CONTAINER` or `CONTAINER:/RUN_DIR` names; None for no such."""
    named = _NAME.fullmatch(text)
    if named is None or shutil.which("docker") is None:
        return None
    container, run_dir = named[1], named[2]
    there = _docker("inspect", "--format", "{{.Id}}", container).returncode == 0
    return (container, run_dir) if there else None


def _run_dir(container: str) -> str:
    shown = _docker("inspect", "--format", "{{json .Args}}", container).stdout
    words = [part for word in json.loads(shown or "[]") for part in word.split("=", 1)]
    given = dict(pairwise(words))
    task, repository = given.get("--task-id"), given.get("--expected-repo-name")
    if task and repository:
        return f"{CHECKPOINTS_DIR}/{task}/.run-{repository}/train"
    raise ConfigurationError(
        f"the container {container} was started without --task-id and --expected-repo-name: name "
        f"the folder of its run as {container}:/RUN_DIR"
    )


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
