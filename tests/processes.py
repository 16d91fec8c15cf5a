"""Trainer processes without the seconds that importing torch, TRL and DeepSpeed takes each.

They are forked from a process that has imported all of it once (multiprocessing's fork server), and
are real ones otherwise: an environment, an output, signals and an exit status of their own.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest import mock

from miner.distributed.launch import free_port

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "tests.kept_imports",
        "deepspeed",
        "trl.trainer.grpo_trainer",
        "peft",
        "miner.training.run",
        "tests.builders",
    ]
)
_AT_IMPORT = {
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What the trainer's command sets before it imports them."""


class Forked:
    """One process; its output goes to files in `folder`.

    Args:
        run: a function that can be imported, called with `arguments` in the process.
        environ: its whole environment.
    """

    def __init__(
        self,
        folder: Path,
        run: Callable[..., Any],
        *arguments: Any,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._files = [folder / f"{name}-{time.monotonic_ns()}" for name in ("stdout", "stderr")]
        whole = dict(os.environ if environ is None else environ)
        self._process = _FORKS.Process(
            target=_run, args=([str(file) for file in self._files], whole, run, arguments)
        )
        with mock.patch.dict(os.environ, _AT_IMPORT):
            self._process.start()

    @property
    def stdout(self) -> str:
        """Output so far."""
        return _text(self._files[0])

    @property
    def stderr(self) -> str:
        """Errors so far."""
        return _text(self._files[1])

    @property
    def returncode(self) -> int:
        """Its exit status, or minus the signal that ended it; waits for that."""
        self._process.join()
        status = self._process.exitcode
        assert status is not None
        return status

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the process does; that it ends before is a failure."""
        while not condition():
            ended = not self._process.is_alive()
            if ended and not condition():
                raise AssertionError(f"it ended too early: {self.stdout}{self.stderr}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def sentinel(self) -> Any:
        """Ready once it has ended."""
        return self._process.sentinel

    def send_signal(self, number: int) -> None:
        """As os.kill."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it still runs."""
        if self._process.is_alive():
            self.send_signal(signal.SIGKILL)
        self._process.join()


def start_miner(folder: Path, *arguments: str, **environ: str) -> Forked:
    """`python -m miner ...`; environment servers only if they are named."""
    clean = {k: v for k, v in os.environ.items() if k != "ENVIRONMENT_SERVER_URLS"}
    return Forked(folder, _miner, *arguments, environ=clean | environ)


def run_ranks(
    folder: Path,
    run: Callable[..., Any],
    *arguments: Any,
    count: int = 2,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Call `run` in processes that are each other's ranks, and wait for them all to end well.

    `environ` is added to this process's environment without what accelerate reads.
    """
    world = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    world = clean | world | dict(environ or {})
    ranks = [
        Forked(
            folder,
            *(_rank, run, *arguments),
            environ=world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    try:
        running = {rank.sentinel: rank for rank in ranks}
        while running:  # one that fails, whichever it is, leaves the others waiting for it
            for ended in wait([*running]):
                rank = running.pop(ended)
                assert rank.returncode == 0, rank.stdout + rank.stderr
    finally:
        for rank in ranks:
            rank.kill()


def _run(
    files: list[str], environ: dict[str, str], run: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """In the process."""
    gc.freeze()  # see tests.kept_imports
    gc.enable()
    for number, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    run(*arguments)


def _miner(*arguments: str) -> None:
    sys.argv = ["miner", *arguments]
    runpy.run_module("miner", run_name="__main__", alter_sys=True)


def _rank(run: Callable[..., Any], *arguments: Any) -> None:
    os.environ["MINER_PARENT_PID"] = str(os.getppid())  # as the launcher has it
    run(*arguments)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
