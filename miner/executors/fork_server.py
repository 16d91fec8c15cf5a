"""The miner's end of the fork server: starts it, asks for workers, hears how each ended.

Invariants:
* a worker that was asked for ends in `Worker.ended` exactly once: with its status, or with an
  `InfrastructureError` if the fork server dies first;
* nothing that code in a worker does can end the fork server or be taken for its failure.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError
from miner.executors.base import Limits
from miner.executors.jail.worker import READY
from miner.executors.jail.zygote import PACKET
from miner.executors.system_calls import system_call_filter

NAME = "sandbox"
START_SECONDS = 30.0
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from jail.zygote import main; main()"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}
"""All that workers can find out about ours; and equal code runs equally."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that is locked and waits for code.

    Attributes:
        ticket: by which the fork server knows it.
        talk: socket that takes the code and brings what it prints.
        complain: socket that brings its stderr.
        ended: resolves to its exit status, or minus the signal that ended it.
    """

    ticket: int
    talk: socket.socket
    complain: socket.socket
    ended: asyncio.Future[int]

    def close(self) -> None:
        """Close the sockets."""
        self.talk.close()
        self.complain.close()


class ForkServer:
    """One fork server. Use `start`; after `lost` another one is needed."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._tickets = itertools.count()
        self._endings: dict[int, asyncio.Future[int]] = {}
        self._loop = asyncio.get_running_loop()
        self.lost = False

    @classmethod
    async def start(cls, limits: Limits, modules: Sequence[str], *, landlock: bool) -> ForkServer:
        """Start one and wait until it is locked.

        Args:
            modules: imported before the first fork, for all workers.
            landlock: true to open the standard library's files to workers, by Landlock.

        Raises: `ConfigurationError` if the kernel cannot lock it, `InfrastructureError` if it dies.
        """
        settings = {
            "modules": list(modules),
            "landlock": landlock,
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": ceil(limits.seconds) + 1,
            "system_calls": base64.b64encode(system_call_filter(files=landlock)).decode(),
        }
        process, ours = _start_process()
        server = cls(process, ours)
        try:
            await server._first_words(settings)
        except BaseException:
            server.close()
            raise
        server._loop.add_reader(ours, server._hear)
        return server

    async def worker(self) -> Worker:
        """A fresh worker, locked and ready for code. Raises: `InfrastructureError`."""
        ticket = next(self._tickets)
        talk, its_talk = socket.socketpair()
        complain, its_complain = socket.socketpair()
        for end in (talk, complain):
            end.setblocking(False)
        worker = Worker(ticket, talk, complain, self._loop.create_future())
        self._endings[ticket] = worker.ended
        try:
            with its_talk, its_complain:
                self._tell({"spawn": ticket}, [its_talk.fileno(), its_complain.fileno()])
            await self._locked(worker)
        except BaseException:
            self.kill(worker)
            worker.close()
            raise
        return worker

    async def _locked(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                if await self._loop.sock_recv(worker.talk, len(READY)) == READY:
                    return
                status = await worker.ended
        except (TimeoutError, OSError) as error:
            raise InfrastructureError(
                f"the sandbox made no process within {START_SECONDS:g} s", server=NAME
            ) from error
        raise InfrastructureError(
            f"a process of the sandbox ended with {status} before it was locked; it was given no "
            "code",
            server=NAME,
        )

    def kill(self, worker: Worker) -> None:
        """End a worker, if it has not ended (never raises: with the fork server it ends anyway)."""
        if not worker.ended.done() and not self.lost:
            with contextlib.suppress(InfrastructureError):
                self._tell({"kill": worker.ticket})

    def close(self) -> None:
        """End the fork server and all its workers (idempotent)."""
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()  # at which it kills its workers and ends
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._lose("was closed")

    async def _first_words(self, settings: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._loop.sock_sendall(self._control, json.dumps(settings).encode())
                answer = json.loads(await self._loop.sock_recv(self._control, PACKET) or b"null")
        except (TimeoutError, OSError) as error:
            raise InfrastructureError(
                f"the sandbox's fork server did not start ({error!r}){self._last_words()}",
                server=NAME,
            ) from error
        if answer is None:
            raise InfrastructureError(
                f"the sandbox's fork server ended as it started{self._last_words()}", server=NAME
            )
        if "refused" in answer:
            raise ConfigurationError(
                f"the sandbox cannot be locked here ({answer['refused']}), and code is never run "
                "outside of it: run where seccomp is allowed, or choose E2B as the executor",
            )

    def _last_words(self) -> str:
        self._process.kill()
        _, printed = self._process.communicate()
        return f": {printed.decode(errors='replace').strip()[-400:]}" if printed else ""

    def _tell(self, order: dict[str, int], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            self._lose(f"cannot be reached ({error})")
            raise InfrastructureError(
                f"the sandbox's fork server cannot be reached ({error}); the code is run again by "
                "another",
                server=NAME,
            ) from error

    def _hear(self) -> None:
        try:
            packet = self._control.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._control)
            self._lose("died")
            return
        message = json.loads(packet)
        ended = self._endings.pop(message.get("ended", message.get("lost")))
        if ended.done():
            return
        if "lost" in message:
            ended.set_exception(
                InfrastructureError(f"the sandbox cannot fork: {message['why']}", server=NAME)
            )
            ended.exception()  # the waiter may be gone
        else:
            ended.set_result(message["status"])

    def _lose(self, how: str) -> None:
        self.lost = True
        for ended in self._endings.values():
            if not ended.done():
                ended.set_exception(
                    InfrastructureError(
                        f"the sandbox's fork server {how} while code ran; the code is run again by "
                        "another",
                        server=NAME,
                    )
                )
                ended.exception()
        self._endings.clear()


def _start_process() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `PROGRAM` in a bare Python; return it and our end of its socket of orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    folder = str(Path(__file__).parent)
    # The Python of the machine: without the virtual environment.
    interpreter = str(getattr(sys, "_base_executable", None) or sys.executable)
    with theirs:
        process = subprocess.Popen(
            [interpreter, "-s", "-S", "-P", "-B", "-c", PROGRAM, folder],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    return process, ours
