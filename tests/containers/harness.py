"""Containers of the miner under the tournament's limits, and what a test asks of them."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # its image would have to be pulled
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from miner.publishing.structure import ModelReport
from miner.publishing.verify import verify_model

SMALL_IMAGE = "goofspiel-miner:cpu"
IMAGE = os.environ.get("MINER_IMAGE", SMALL_IMAGE)
CLIENT: Mapping[str, Any] = {"timeout": 900}
"""Seconds for a request to the engine: removing what a job of the large image has written takes
minutes on a busy disk."""
LOADING = threading.Lock()
"""transformers loads a model by changing this process's default dtype and its own classes for a
while: two threads that load at once leave them changed for every test that comes after."""
LIMITS: Mapping[str, Any] = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "shm_size": "1g",
}
JOB = {
    "--task-id": "task-1",
    "--model": "acme/tiny",
    "--dataset": "https://store.example/stub.json",
    "--dataset-type": '{"environment_name": "goofspiel"}',
    "--task-type": "EnvTask",
    "--file-format": "s3",
    "--expected-repo-name": "repo-1",
    "--hours-to-complete": "0.3",
}
SMALL = {
    "rollout.groups_per_step": "2",
    "rollout.group_size": "4",
    "evaluation.every_steps": "1",
    "evaluation.episodes": "10",
    "checkpoint.every_steps": "1",
    "environment.deck_sizes": "[8]",
    "threads": "1",
}
"""Settings of a run whose steps take a second or two."""


@dataclass(frozen=True)
class Place:
    """What every run finds: an internal network, a read-only cache, an environment server."""

    network: Network
    cache: Path
    server: str


class Container:
    """One container in the place's network; `remove` it at the end.

    Args:
        name: by which the others in the network find it.
        variables: of its environment.
        volumes: folders here and where they lie there, with ":ro" for read-only ones.
        tmpfs: folders there and their size.
        options: of the engine, on top of `LIMITS`.
    """

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        *,
        name: str = "",
        variables: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
        tmpfs: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        container = DockerContainer(IMAGE, dict(CLIENT)).with_command(list(command))
        container.with_network(place.network).with_network_aliases(*filter(None, [name]))
        for here, there in (volumes or {}).items():
            folder, _, mode = there.partition(":")
            container.with_volume_mapping(here, folder, mode or "rw")
        for folder, size in (tmpfs or {}).items():
            container.with_tmpfs_mount(folder, f"size={size}")
        container.with_envs(**(variables or {})).with_kwargs(**{**LIMITS, **options})
        self._container = container.start()
        self.engine = self._container.get_wrapped_container()

    def wait(self) -> int:
        """Its exit status."""
        return int(self.engine.wait()["StatusCode"])

    @property
    def log(self) -> list[str]:
        """The lines it has printed."""
        return self.engine.logs().decode(errors="replace").splitlines()

    def wait_for(self, words: str) -> None:
        """Return when it has printed a line with these words since its latest start.

        Raises: AssertionError if it ends without them.
        """
        self.engine.reload()
        since = datetime.fromisoformat(self.engine.attrs["State"]["StartedAt"])
        rest = ""
        for piece in self.engine.logs(stream=True, follow=True, since=since.timestamp()):
            *lines, rest = (rest + piece.decode(errors="replace")).split("\n")
            if any(words in line for line in lines):
                return
        raise AssertionError(f"it ended without {words!r}: {self.log}")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds. Raises: AssertionError if it ends before."""
        while not condition():
            self.engine.reload()
            assert self.engine.status == "running", self.log
            time.sleep(0.002)

    def remove(self) -> None:
        """Kill and remove it."""
        self._container.stop()


class EnvironmentServer(Container):
    """A mock environment server on port 8000."""

    def __init__(self, place: Place, name: str) -> None:
        command = ("-m", "mock_env_server", "--host", "0.0.0.0")
        super().__init__(place, command, name=name, entrypoint="python")


class Miner(Container):
    """One job in a container.

    Args:
        output: folder that is mounted as the output volume; None: none is.
        job: arguments that replace or add to `JOB`, None leaves one out.
        settings: of the trainer, on top of `SMALL`.
        servers: ENVIRONMENT_SERVER_URLS, by default the place's server.
        options: see `Container`.
    """

    def __init__(
        self,
        place: Place,
        output: Path | None,
        *,
        job: Mapping[str, str | None] | None = None,
        settings: Mapping[str, str] | None = None,
        servers: str | None = None,
        variables: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        given = {**JOB, **(job or {})}
        command = [f"{name}={value}" for name, value in given.items() if value is not None]
        values = {**SMALL, **(settings or {})}
        command += [f"--set={name}={value}" for name, value in values.items()]
        volumes = {place.cache: "/cache:ro"}
        if output is not None:
            output.mkdir(exist_ok=True)
            output.chmod(0o777)  # root without capabilities is a user like any other
            volumes[output] = "/app/checkpoints"
        variables = {
            "ENVIRONMENT_SERVER_URLS": place.server if servers is None else servers,
            "WANDB_MODE": "offline",
            **(variables or {}),
        }
        super().__init__(place, command, volumes=volumes, variables=variables, **options)
        self._output = output

    @property
    def model(self) -> Path:
        """Where the published model lies on this side."""
        assert self._output is not None
        return self._output / "task-1" / "repo-1"

    def verified(self) -> ModelReport:
        """The published model, loaded as the grader would. Raises: `UnverifiedModelError`."""
        with LOADING:
            return verify_model(self.model, load=True)
