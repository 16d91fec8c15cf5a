"""The local sandbox: code runs on this machine, in locked processes that a fork server keeps warm.

Invariants:
* code runs only in a process that has lost its privileges, files, network, descriptors and all
  system calls but a list, and whose memory, time and output are bounded;
* processes are made before they are needed, and each runs one piece of code;
* a fork server that died is replaced at the next run; the runs it had fail as infrastructure.
"""

import asyncio
import signal
import socket
from collections import deque
from typing import Any

from miner.config.control_groups import usable_cpus
from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError
from miner.executors.base import CodeFailure, Execution, Limits, too_long
from miner.executors.fork_server import NAME, ForkServer, Worker
from miner.executors.jail.kernel import landlock_version
from miner.executors.jail.worker import FAILED, OUT_OF_MEMORY

MODULES = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "itertools", "json", "math", "operator", "random", "re",
    "statistics", "string", "textwrap", "time", "traceback", "typing", "unicodedata",
)  # fmt: skip
"""Imported beforehand: all there is where Landlock is missing, and quicker where it is not."""

END_SECONDS = 10.0
"""A process that was killed is gone within this time, or the executor has failed."""
CHUNK = 16 * 1024
WARM = 4
"""Processes that wait for code."""


class LocalSandbox:
    """Runs Python in this machine's own sandbox.

    Args:
        limits: of each run.
        landlock: true if code may import all of the standard library, which takes Landlock; None:
            where the kernel has it.
    """

    name = NAME

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        landlock: bool | None = None,
    ) -> None:
        if landlock and not landlock_version():
            raise ConfigurationError(
                "landlock=True, but this kernel has no Landlock: leave it out, and code does "
                "without modules that are not loaded beforehand",
            )
        self.limits = limits or Limits()
        self.landlock = landlock_version() > 0 if landlock is None else landlock
        # One run a core, so that none runs into its limit of time because of another.
        self._places = asyncio.Semaphore(usable_cpus())
        self._starting = asyncio.Lock()
        self._server: ForkServer | None = None
        self._warm: deque[Worker] = deque()
        self._warming: asyncio.Task[None] | None = None

    async def run(self, code: str) -> Execution:
        """Run `code`. Raises: `InfrastructureError`, `ConfigurationError`."""
        refused = too_long(code, self.limits)
        if refused is not None:
            return refused
        async with self._places:
            server = await self._running_server()
            worker = self._take_warm() or await server.worker()
            self._keep_warm(server)
            try:
                return await _Run(server, worker, self.limits).finish(code)
            finally:
                server.kill(worker)
                worker.close()

    async def close(self) -> None:
        """End the fork server with everything that it started (idempotent)."""
        if self._warming is not None:
            self._warming.cancel()
        if self._server is not None:
            self._server.close()
        self._drop_warm()

    async def _running_server(self) -> ForkServer:
        async with self._starting:
            if self._server is None or self._server.lost:
                if self._server is not None:
                    self._server.close()
                    self._drop_warm()
                self._server = await ForkServer.start(self.limits, MODULES, landlock=self.landlock)
            return self._server

    def _take_warm(self) -> Worker | None:
        while self._warm:
            worker = self._warm.popleft()
            if not worker.ended.done():
                return worker
            worker.close()
        return None

    def _keep_warm(self, server: ForkServer) -> None:
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(self._fill(server))

    async def _fill(self, server: ForkServer) -> None:
        try:
            while len(self._warm) < WARM and not server.lost:
                worker = await server.worker()
                if server is self._server and not server.lost:
                    self._warm.append(worker)
                else:
                    worker.close()
        except InfrastructureError:
            return  # the next run makes its process and gets the error

    def _drop_warm(self) -> None:
        while self._warm:
            self._warm.pop().close()


class _Run:
    """One piece of code in one worker."""

    def __init__(self, server: ForkServer, worker: Worker, limits: Limits) -> None:
        self._server = server
        self._worker = worker
        self._limits = limits
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def finish(self, code: str) -> Execution:
        """Give the worker its code and wait until it has ended, on its own or by a limit."""
        worker = self._worker
        readers = [asyncio.create_task(self._read(end)) for end in (worker.talk, worker.complain)]
        over: set[asyncio.Future[Any]] = {worker.ended, self._full}
        late = False
        try:
            try:
                async with asyncio.timeout(self._limits.seconds):
                    await self._send(code)
                    await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                late = True
            self._server.kill(worker)
            status = await self._ending()
            out, err = await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()
            # the loop must know of no socket that is closed: the next one has its number
            await asyncio.gather(*readers, return_exceptions=True)
        return Execution(_text(out, self._limits), self._failure(status, err, late))

    async def _send(self, code: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._worker.talk, code.encode("utf-8", "replace"))
            self._worker.talk.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it ended before it had read everything: its status has the cause

    async def _ending(self) -> int:
        try:
            async with asyncio.timeout(END_SECONDS):
                return await asyncio.shield(self._worker.ended)
        except TimeoutError as error:
            self._server.close()
            raise InfrastructureError(
                f"a process of the sandbox was not gone {END_SECONDS:g} s after it was killed",
                server=NAME,
            ) from error

    async def _read(self, end: socket.socket) -> bytes:
        """Everything until the end, or a little more than the limit."""
        loop = asyncio.get_running_loop()
        read = bytearray()
        while len(read) <= self._limits.output_bytes:
            try:
                chunk = await loop.sock_recv(end, CHUNK)
            except OSError:
                break
            if not chunk:
                return bytes(read)
            read += chunk
        if len(read) > self._limits.output_bytes and not self._full.done():
            self._full.set_result(None)
        return bytes(read)

    def _failure(self, status: int, err: bytes, late: bool) -> CodeFailure | None:
        limits = self._limits
        if self._full.done():
            return CodeFailure(
                "output", f"stopped: more than {limits.output_bytes:,} bytes printed"
            )
        # The loop's clock alone does not decide: it may have stalled while the code ended.
        if (late and status == -signal.SIGKILL) or status == -signal.SIGXCPU:
            return CodeFailure("time", f"stopped: not finished after {limits.seconds:g} s")
        printed = _text(err, limits).rstrip("\n")
        if status == 0:
            return None
        if status < 0:
            return CodeFailure("crash", f"crashed: {signal.Signals(-status).name}")
        if status == OUT_OF_MEMORY:
            return CodeFailure("memory", printed or "MemoryError")
        if status == FAILED and printed:
            return CodeFailure("exception", printed)
        return CodeFailure("exit", f"exited with status {status}")


def _text(data: bytes, limits: Limits) -> str:
    return data[: limits.output_bytes].decode("utf-8", "replace")
