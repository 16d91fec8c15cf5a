"""The first process of a realm: runs bash, one command at a time, and knows what has changed.

Invariants:
* `ready` is said only when every restriction is in force and a trial has shown it; nothing is
  executed before;
* whatever a command has started ends with it;
* answers come from this process alone: commands have none of its descriptors, and can neither look
  inside it nor end it.

Messages (JSON, one a packet): first the miner's settings, with a descriptor of a tar archive where
there are files to begin with, answered by `ready` or `refused`; then `{"run": command, "folder":
path}` with a descriptor for the output, answered by `{"ended": status or -signal}` or
`{"malformed": why}`; `{"end": true}` while it runs ends it; and `{"changes": true}`, answered by
`{"size": bytes}` and that many bytes of JSON through the descriptor that came with it.
"""

from __future__ import annotations

import base64
import ctypes
import gzip  # noqa: F401 (an archive may be compressed, and no module can be loaded later)
import hashlib
import json
import os
import selectors
import signal
import socket
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

from . import kernel, realm

CONTROL = 0  # descriptor
PACKET = 64 * 1024
OUTSIDE = ("/dev", "/proc", "/usr")
"""Not looked at for changes."""
BASH = "/bin/bash"
NOT_RUN = 127
DESCRIPTORS = 256
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class Keeper:
    """Serves commands as it is told."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._settings = settings
        self._filter = kernel.SystemCallFilter(base64.b64decode(settings["system_calls"]))
        self._before: dict[str, str] = {}

    def prepare(self, files: int | None) -> None:
        """Go into the realm, fill it, lock it, and prove it. Raises: `OSError`."""
        kernel.die_with_parent(signal.SIGKILL)
        realm.enter(self._settings["disk_bytes"], self._settings["entries"])
        os.umask(0o022)
        if files is not None:
            _unpack(files)
        if not os.access(BASH, os.X_OK):
            raise OSError(f"this machine has no {BASH}")
        realm.drop_privileges()
        self._prove()
        self._before = dict(_entries())

    def serve(self) -> None:
        """Return when the miner has gone."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET, 1)
            if not packet:
                return
            order = json.loads(packet)
            if "run" in order:
                _say(self._control, self._run(order["run"], order["folder"], descriptors[0]))
            elif "changes" in order:
                self._tell_changes(descriptors[0])

    def _run(self, command: str, folder: str, output: int) -> dict[str, Any]:
        try:
            os.chdir(folder)
        except (OSError, ValueError) as error:
            os.close(output)
            return {"malformed": str(error)}
        pid = os.fork()
        if pid == 0:
            try:
                self._become(command, output)
            finally:
                os._exit(NOT_RUN)
        os.chdir("/")
        os.close(output)
        with selectors.DefaultSelector() as waiting:
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            waiting.register(self._control, selectors.EVENT_READ)
            ready = [key for key, _ in waiting.select()]
            if all(key.data is None for key in ready):  # told to end it, or the miner has gone
                self._control.recv(PACKET)
            for key in list(waiting.get_map().values()):
                if key.data is not None:
                    os.close(key.fd)
        return {"ended": _end_all(pid)}

    def _become(self, command: str, output: int) -> NoReturn:
        nothing = os.open("/dev/null", os.O_RDONLY)
        for there, here in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(there, here)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        given = self._settings
        kernel.limit_resources(
            given["memory_bytes"], given["cpu_seconds"], DESCRIPTORS,
            given["disk_bytes"], given["processes"],
        )  # fmt: skip
        self._filter.load()
        os.execve(BASH, ["bash", "-c", command], ENVIRONMENT)

    def _tell_changes(self, to: int) -> None:
        now = dict(_entries())
        changed: dict[str, str | None] = {
            path: content for path, content in now.items() if self._before.get(path) != content
        }
        changed.update(dict.fromkeys(self._before.keys() - now.keys()))
        told = json.dumps(changed).encode()
        _say(self._control, {"size": len(told)})
        with os.fdopen(to, "wb") as file:
            file.write(told)

    def _prove(self) -> None:
        """Raise `OSError` unless a process like those of commands is refused what it must be."""
        pid = os.fork()
        if pid == 0:
            done = 1
            try:
                self._filter.load()
                ctypes.set_errno(0)
                apart = kernel.libc.unshare(realm.NEWNS)
                done = 0 if apart == -1 and not _capabilities() else 1
            finally:
                os._exit(done)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("a trial process kept privileges, or seccomp filters no system calls")


def _capabilities() -> int:
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.startswith("Cap")]
    return sum(int(value, 16) for name, value in lines)


def _end_all(pid: int) -> int:
    """End every other process here; the status of `pid`, or minus the signal that ended it."""
    status = None
    ended, code = os.waitpid(pid, os.WNOHANG)
    if ended:
        status = code
    while True:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            ended, code = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == pid:
            status = code
    assert status is not None
    return os.waitstatus_to_exitcode(status)


def _unpack(archive: int) -> None:
    with os.fdopen(archive, "rb") as file, tarfile.open(fileobj=file) as tar:
        tar.extractall("/", filter=_wanted)


def _wanted(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    return member.replace(uid=None, gid=None, uname=None, gname=None, deep=False)  # type: ignore[arg-type]


def _entries() -> Iterator[tuple[str, str]]:
    """Path and digest of each file and link; folders count by what is in them."""
    folders = ["/"]
    while folders:  # no recursion: a command can make folders deeper than Python's stack
        for entry in _listed(folders.pop()):
            if entry.path in OUTSIDE:
                continue
            if entry.is_symlink():
                yield _text(entry.path), f"link {_text(os.readlink(entry.path))}"
            elif entry.is_dir():
                folders.append(entry.path)
            else:
                yield _text(entry.path), _digest(entry.path)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        _open_up(folder, 0o500)
        return list(os.scandir(folder))
    except OSError:
        return []  # too deep to have a path


def _digest(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            return f"special {stat.S_IFMT(mode)}"
        _open_up(path, 0o400)
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:  # again, too deep
        return f"unreadable {error.errno}"
    return f"{'x' if mode & 0o100 else '-'} {content}"


def _open_up(path: str, needed: int) -> None:
    """Commands may have closed it even to its owner; who has all privileges would read it still."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & needed != needed:
        os.chmod(path, mode | needed)


def _text(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode())


def main() -> None:
    """Take the settings, leave the machine, and let the first process of the realm serve."""
    control = socket.socket(fileno=CONTROL)
    packet, descriptors, _, _ = socket.recv_fds(control, PACKET, 1)
    keeper = Keeper(control, json.loads(packet))
    try:
        realm.part()
        first = os.fork()
        if first == 0:
            keeper.prepare(descriptors[0] if descriptors else None)
    except (OSError, tarfile.TarError, EOFError) as error:
        _say(control, {"refused": str(error)})
        os._exit(1)
    if first == 0:
        _say(control, {"ready": True})
        keeper.serve()
    else:
        control.close()
        os.waitpid(first, 0)
