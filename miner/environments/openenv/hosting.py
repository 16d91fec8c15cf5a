"""An OpenEnv server that is started here, as an application of this machine.

Invariants:
* a server that was started is stopped, also when the start fails, and ends with this process even
  if that is killed;
* its output goes to a file, so that it never waits for a reader.
"""

import asyncio
import logging
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from miner.config.errors import ConfigurationError
from miner.distributed.launch import free_port
from miner.environments.openenv.server import OpenEnvServer

logger = logging.getLogger(__name__)

SERVE: Final = Path(__file__).with_name("serve_app.py")
_STOP_S: Final = 5.0
_LAST_WORDS: Final = 300
_LOG_END: Final = 65_536


class LocalApp:
    """An ASGI application under uvicorn, at `url`.

    Args:
        app: `FILE.py` or `FILE.py:NAME`; NAME is `app` by default.
        python: has the packages that the file imports, uvicorn among them.

    Raises: `ConfigurationError` where there is no such file or Python.
    """

    def __init__(self, app: str, python: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
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
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it has no name: a kill leaves none)

    async def start(self) -> None:
        """Start it, or start it again on the same port; it does not answer yet.

        It ends with the thread that calls this.
        """
        app = f"{self._file.stem}:{self._name}"
        self._process = subprocess.Popen(  # noqa: ASYNC220 (a fork and an exec: a millisecond)
            [self._python, SERVE, self._file.parent, app, str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for the run, whose last evaluation needs it
        )

    def ended(self) -> str:
        """Return its status and last words if it has ended, "" while it runs."""
        status = None if self._process is None else self._process.poll()
        if status is None:
            return ""
        begins = max(0, os.fstat(self._log.fileno()).st_size - _LOG_END)
        words = _last_words(os.pread(self._log.fileno(), _LOG_END, begins))
        return f"status {status}, {words}"

    def stop(self) -> None:
        """End it (idempotent)."""
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


async def start(host: LocalApp, seconds: float) -> None:
    """Start it and wait until it answers; where it does not, it is stopped again.

    Raises: `ConfigurationError` where it ends, or does not answer within `seconds`.
    """
    try:
        await host.start()
        await _answers(host, seconds)
    except BaseException:
        await asyncio.to_thread(host.stop)
        raise


async def revive(host: LocalApp) -> None:
    """Start it again if it has ended; it does not answer yet."""
    words = await asyncio.to_thread(host.ended)
    if words:
        logger.warning("the OpenEnv server at %s ended (%s): it is started again", host.url, words)
        await host.start()


async def _answers(host: LocalApp, seconds: float) -> None:
    def alive() -> None:
        if words := host.ended():
            raise ConfigurationError(
                f"the OpenEnv server that was to be started ended at once: {words}"
            )

    server = OpenEnvServer(host.url)
    try:
        error = await server.wait_until_healthy(seconds, pause_s=0.05, alive=alive)
    finally:
        await server.close()
    if error:
        raise ConfigurationError(
            f"the OpenEnv server that was started at {host.url} did not answer within "
            f"{seconds:g} s ({error}): raise environment.openenv.start_seconds, or see "
            "whether it listens"
        )


def _last_words(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"last words {lines[-1][-_LAST_WORDS:]!r}" if lines else "without a word"
