"""Bash in a realm of its own: the miner's end.

Invariants:
* a command runs only in a realm that is locked and has shown it (`jail.realm`, `jail.shell`);
  where the machine cannot make one it is refused, never run in another way;
* a command's time, memory, files and output are bounded, and whatever it started ends with it;
* what a command does is its own `Ran`; only a realm that is lost is an `InfrastructureError`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import socket
import subprocess
import tarfile
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError
from miner.executors.fork_server import START_SECONDS, jailer
from miner.executors.jail.shell import PACKET
from miner.executors.system_calls import bash_filter

PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from jail.shell import main; main()"
NAME = "shell"
END_SECONDS = 10.0
"""A command that was ended is gone within this time, or the realm is lost."""
CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """What a command may take, and what a realm holds.

    Attributes:
        seconds: wall time of a command.
        memory_bytes: address space of each of its processes.
        processes: of a realm at once, its first one included.
        output_bytes: what is kept of stdout and stderr together; more ends the command.
        disk_bytes, entries: of all files of a realm, which lie in memory.
    """

    seconds: float = 30.0
    memory_bytes: int = 256 * 1024**2
    processes: int = 32
    output_bytes: int = 256 * 1024
    disk_bytes: int = 32 * 1024**2
    entries: int = 16 * 1024


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command.

    Attributes:
        output: stdout and stderr in their order, as bytes and cut at the limit; None where it could
            not be started in its folder.
        status: exit status, or minus the signal that ended it.
        late: whether it was ended by the limit of time.
    """

    output: bytes | None
    status: int = 0
    late: bool = False


class RealmShell:
    """One realm. Use `start`; one command at a time."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, limits: ShellLimits
    ) -> None:
        self._process = process
        self._control = control
        self._limits = limits

    @classmethod
    async def start(cls, files: Path | None, limits: ShellLimits | None = None) -> RealmShell:
        """Make a realm.

        Args:
            files: a tar archive or a folder of what it holds to begin with, None for nothing.

        Raises: `ConfigurationError` where this machine cannot make or lock one, or cannot read
            `files`, `InfrastructureError` where it dies.
        """
        limits = limits or ShellLimits()
        settings = {
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "disk_bytes": limits.disk_bytes,
            "entries": limits.entries,
            "cpu_seconds": ceil(limits.seconds) + 1,
            "system_calls": base64.b64encode(bash_filter()).decode(),
        }
        archive = None if files is None else _archive(files)
        process, ours = jailer(PROGRAM)
        shell = cls(process, ours, limits)
        try:
            shell._tell(settings, archive)
            answer = await shell._hear(START_SECONDS)
        except BaseException:
            await shell.close()
            raise
        finally:
            if archive is not None:
                os.close(archive)
        if "refused" in answer:
            await shell.close()
            raise ConfigurationError(
                f"no shell can be locked in on this machine ({answer['refused']}), and commands of "
                "a model are never run otherwise: allow user namespaces with mounts, and seccomp "
                "(containers often forbid them)"
            )
        return shell

    async def run(self, command: str, folder: str) -> Ran:
        """Run `command` in `folder` (absolute). Raises: `InfrastructureError`."""
        order = {"run": command, "folder": folder}
        if len(json.dumps(order)) > PACKET:
            return Ran(None)
        read, write = os.pipe()
        try:
            self._tell(order, write)
        finally:
            os.close(write)
        return await self._finish(read)

    async def changes(self) -> dict[str, str | None]:
        """Path and digest of each file or link that is not as at the beginning, None for gone.

        Folders count by what is in them. Raises: `InfrastructureError`.
        """
        read, write = os.pipe()
        try:
            self._tell({"changes": True}, write)
        finally:
            os.close(write)
        reading = asyncio.ensure_future(_output(read, None, asyncio.Event()))
        try:
            answer = await self._hear(START_SECONDS)
            told = await asyncio.wait_for(reading, START_SECONDS)
        except TimeoutError as error:
            raise self._lost("does not tell its changes") from error
        finally:
            reading.cancel()
        if len(told) != answer["size"]:
            raise self._lost("died while it told its changes")
        changed: dict[str, str | None] = json.loads(told)
        return changed

    async def close(self) -> None:
        """End the realm with all that runs in it (idempotent)."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    async def _finish(self, read: int) -> Ran:
        too_much = asyncio.Event()
        reading = asyncio.ensure_future(_output(read, self._limits.output_bytes, too_much))
        ended = asyncio.ensure_future(self._hear(None))
        full = asyncio.ensure_future(too_much.wait())
        try:
            await asyncio.wait(
                (ended, full),
                timeout=self._limits.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            late = not ended.done() and not full.done()
            if not ended.done():
                self._tell({"end": True})
            answer = await asyncio.wait_for(ended, END_SECONDS)
            if "malformed" in answer:
                return Ran(None)
            output = await asyncio.wait_for(reading, END_SECONDS)
            return Ran(output, answer["ended"], late)
        except TimeoutError as error:
            raise self._lost("did not end a command") from error
        finally:
            for each in (ended, full, reading):
                each.cancel()

    def _tell(self, order: dict[str, Any], descriptor: int | None = None) -> None:
        descriptors = [] if descriptor is None else [descriptor]
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            raise self._lost(f"cannot be reached ({error})") from error

    async def _hear(self, seconds: float | None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                packet = await loop.sock_recv(self._control, PACKET)
        except (TimeoutError, OSError) as error:
            raise self._lost(f"does not answer ({error!r})") from error
        if not packet:
            raise self._lost("died")
        answer: dict[str, Any] = json.loads(packet)
        return answer

    def _lost(self, how: str) -> InfrastructureError:
        self._process.kill()
        said = b""
        with contextlib.suppress(ValueError):  # it was closed before
            _, said = self._process.communicate()
        words = said.decode(errors="replace").strip()[-400:]
        return InfrastructureError(
            f"the realm of a shell {how}{': ' if words else ''}{words}", server=NAME
        )


async def _output(descriptor: int, limit: int | None, full: asyncio.Event) -> bytes:
    """What comes out of a pipe until every writer has gone; closes it.

    What is beyond `limit` is dropped, and sets `full`.
    """
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    kept = bytearray()
    try:
        while chunk := await reader.read(CHUNK):
            room = len(chunk) if limit is None else limit - len(kept)
            kept += chunk[:room]
            if len(chunk) > room:
                full.set()
    finally:
        transport.close()
    return bytes(kept)


def _archive(files: Path) -> int:
    """A descriptor of `files` as a tar archive. Raises: `ConfigurationError`."""
    try:
        if files.is_file():
            return os.open(files, os.O_RDONLY | os.O_CLOEXEC)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for entry in sorted(files.iterdir()):
                tar.add(entry, entry.name)
    except (OSError, tarfile.TarError) as error:
        raise ConfigurationError(f"{files} cannot be read as files for a shell: {error}") from error
    archive = os.memfd_create("files")
    os.write(archive, packed.getbuffer())
    os.lseek(archive, 0, os.SEEK_SET)
    return archive
