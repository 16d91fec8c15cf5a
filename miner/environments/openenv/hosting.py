"""OpenEnv servers that are started here: an application of this machine, or a container image.

Invariants:
* a server that was started is stopped, also when the start fails; an application ends with this
  process even if that is killed (a container does not, and is named `miner-openenv-...`);
* what it prints goes to a file, so that nobody has to read it for it to go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.environments.openenv.server import OpenEnvServer

logger = logging.getLogger(__name__)

SERVE: Final = Path(__file__).with_name("serve_app.py")
IMAGE_PORT: Final = 8000
_ENGINE_S: Final = 600.0  # it may have to fetch the image
_STOP_S: Final = 5.0
_LAST_WORDS: Final = 300


class Hosted:
    """A server of our own, at `url`."""

    def __init__(self) -> None:
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it; it does not answer yet. Raises: `ConfigurationError`."""
        raise NotImplementedError

    def ended(self) -> str:
        """Its last words if it has ended by itself, "" while it runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it (idempotent)."""
        raise NotImplementedError


class LocalApp(Hosted):
    """An ASGI application under uvicorn.

    Args:
        app: `FILE.py` or `FILE.py:NAME`; NAME is `app` by default.
        python: has the packages that the file imports, uvicorn among them.

    Raises: `ConfigurationError` where there is no such file or Python.
    """

    def __init__(self, app: str, python: Path) -> None:
        super().__init__()
        file, _, name = app.partition(":")
        self._file, self._name = Path(file).resolve(), name or "app"
        # Not resolved: a virtual environment's python is a link, and is known by its own path.
        self._python = python.absolute()
        if self._file.suffix != ".py" or not self._file.is_file():
            raise ConfigurationError(
                f"environment.openenv.app={app!r} is no Python file: name one like "
                "examples/openenv/echo.py, with an ASGI application called app in it"
            )
        if not os.access(self._python, os.X_OK):
            raise ConfigurationError(
                f"environment.openenv.python={str(python)!r} cannot be run: `make setup-openenv` "
                "makes one with OpenEnv, or name a Python that has what the application imports"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="openenv-", suffix=".log")  # noqa: SIM115

    async def start(self) -> None:
        """See `Hosted`. After an end of its own it starts again, on the same port.

        It ends with the thread that calls this.
        """
        app = f"{self._file.stem}:{self._name}"
        self._process = subprocess.Popen(  # noqa: ASYNC220 (a fork and an exec: a millisecond)
            [self._python, SERVE, self._file.parent, app, str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ended(self) -> str:
        """See `Hosted`."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return ""
        return f"status {status}, {_last_words(Path(self._log.name).read_bytes())}"

    def stop(self) -> None:
        """See `Hosted`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()


class LocalImage(Hosted):
    """A container of an image, by the docker command.

    Raises: `ConfigurationError` without an engine.
    """

    def __init__(self, image: str) -> None:
        super().__init__()
        self._image = image
        self._name = f"miner-openenv-{os.getpid()}-{time.monotonic_ns()}"
        self._docker = shutil.which("docker") or ""
        if not self._docker:
            raise ConfigurationError(
                f"environment.openenv.image={image!r} needs docker, and there is no such command: "
                "install an engine, or start the server elsewhere and name it in "
                "environment.servers"
            )
        self._run("is there an engine that answers?", "version", "--format", "{{.Server.Version}}")

    async def start(self) -> None:
        """See `Hosted`."""
        await asyncio.to_thread(self.stop)
        publish = f"127.0.0.1:{self._port}:{IMAGE_PORT}"
        words = ("run", "--detach", "--name", self._name, "--publish", publish, self._image)
        question = "is it the name of an image that can be had here?"
        await asyncio.to_thread(self._run, question, *words)

    def ended(self) -> str:
        """See `Hosted`."""
        running = self._docker_says("inspect", "--format", "{{.State.Running}}", self._name)
        if running.stdout.strip() == b"true":
            return ""
        said = self._docker_says("logs", "--tail", "20", self._name)
        return _last_words(said.stdout + said.stderr)

    def stop(self) -> None:
        """See `Hosted`."""
        self._docker_says("rm", "--force", "--volumes", self._name)

    def _run(self, question: str, *words: str) -> None:
        done = self._docker_says(*words)
        if done.returncode:
            raise ConfigurationError(
                f"environment.openenv.image={self._image!r} cannot be started, docker {words[0]} "
                f"says {_last_words(done.stderr)}: {question}"
            )

    def _docker_says(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                [self._docker, *words], capture_output=True, timeout=_ENGINE_S, check=False
            )
        except subprocess.TimeoutExpired:
            late = f"nothing within {_ENGINE_S:g} s".encode()
            return subprocess.CompletedProcess(words, 1, b"", late)


def hosted(settings: OpenEnvSettings) -> Hosted | None:
    """What the settings name to be started here. Raises: `ConfigurationError`."""
    if settings.app:
        return LocalApp(settings.app, settings.python)
    return LocalImage(settings.image) if settings.image else None


async def start(host: Hosted, seconds: float) -> None:
    """Start it and wait until it answers; where it does not, it is stopped again.

    Raises: `ConfigurationError` where it ends, or does not answer within `seconds`.
    """
    try:
        await host.start()
        await _answers(host, seconds)
    except BaseException:
        await asyncio.to_thread(host.stop)
        raise


async def revive(host: Hosted) -> None:
    """Start it again if it has ended by itself; it does not answer yet."""
    words = await asyncio.to_thread(host.ended)
    if words:
        logger.warning("the OpenEnv server at %s ended (%s): it is started again", host.url, words)
        await host.start()


async def _answers(host: Hosted, seconds: float) -> None:
    server = OpenEnvServer(host.url)
    try:
        async with asyncio.timeout(seconds):
            while complaint := await server.complaint():
                words = await asyncio.to_thread(host.ended)
                if words:
                    raise ConfigurationError(
                        f"the OpenEnv server that was to be started ended at once: {words}"
                    )
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ConfigurationError(
            f"the OpenEnv server that was started at {host.url} did not answer within "
            f"{seconds:g} s ({complaint}): raise environment.openenv.start_seconds, or see whether "
            "it listens"
        ) from None
    finally:
        await server.close()


def _last_words(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"last words {lines[-1][-_LAST_WORDS:]!r}" if lines else "without a word"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
