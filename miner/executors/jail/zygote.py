"""The fork server: a small process that knows no code, and forks workers that are given some.

Invariants:
* it is itself without privileges and, where there is Landlock, without files before the first fork;
* it never sees code or output: no worker can find another run's in its memory;
* every worker is reaped and reported once; all are killed when the miner's end of the socket
  closes, which also happens when the miner is killed.

Messages (JSON, one a packet): first the miner's settings, answered by `ready` or `refused`; then
`{"spawn": n}` with two descriptors, answered by `{"lost": n, "why": ...}` if it cannot fork;
`{"kill": n}`; and from here `{"ended": n, "status": exit status or -signal}`.
"""

import base64
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from . import kernel, worker

CONTROL = 0  # descriptor
PACKET = 64 * 1024


class Zygote:
    """Forks, kills and reaps workers on request."""

    def __init__(self, control: socket.socket, rules: worker.Rules) -> None:
        self._control = control
        self._rules = rules
        self._pids: dict[int, int] = {}
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(control, selectors.EVENT_READ)

    def serve(self) -> None:
        """Return when the miner has gone."""
        while True:
            for key, _ in self._waiting.select():
                if key.data is not None:
                    self._reap(key.fd, key.data)
                elif not self._obey():
                    for pid in self._pids.values():
                        os.kill(pid, signal.SIGKILL)
                    return

    def _obey(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET, 2)
        if not packet:
            return False
        order = json.loads(packet)
        if "spawn" in order:
            self._spawn(order["spawn"], *descriptors)
        elif order["kill"] in self._pids:
            os.kill(self._pids[order["kill"]], signal.SIGKILL)
        return True

    def _spawn(self, ticket: int, talk: int, complain: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            _send(self._control, {"lost": ticket, "why": str(error)})
        else:
            if pid == 0:
                try:
                    worker.live(self._rules, talk, complain)
                finally:  # not locked: it must never come back here
                    os._exit(worker.FAILED)
            self._pids[ticket] = pid
            self._waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, ticket)
        os.close(talk)
        os.close(complain)

    def _reap(self, descriptor: int, ticket: int) -> None:
        self._waiting.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(self._pids.pop(ticket), 0)
        _send(self._control, {"ended": ticket, "status": os.waitstatus_to_exitcode(status)})


def main() -> None:
    """Take the settings from the control socket, lock this process, and serve."""
    control = socket.socket(fileno=CONTROL)
    settings = json.loads(control.recv(PACKET))
    try:
        rules = _prepare(settings)
    except (OSError, ImportError) as error:
        _send(control, {"refused": str(error)})
        return
    _send(control, {"ready": True})
    Zygote(control, rules).serve()


def _prepare(settings: dict[str, Any]) -> worker.Rules:
    for name in settings["modules"]:
        importlib.import_module(name)
    sys.argv = ["<code>"]
    stdlib = Path(os.__file__).parent
    sys.path[:] = [path for path in sys.path if Path(path).is_relative_to(stdlib)]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    system_calls = kernel.SystemCallFilter(base64.b64decode(settings["system_calls"]))
    kernel.give_up_privileges()
    if settings["landlock"]:
        kernel.read_nothing_but(stdlib)
    _prove(system_calls)
    gc.collect()
    gc.freeze()  # forks share these objects; collecting them would copy their pages
    return worker.Rules(settings["memory_bytes"], settings["cpu_seconds"], system_calls)


def _prove(system_calls: kernel.SystemCallFilter) -> None:
    """Raise `OSError` unless the filter refuses a process all calls that are not on its list."""
    pid = os.fork()
    if pid == 0:
        try:
            system_calls.load()
            os.pipe()
        except PermissionError:
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("seccomp filters no system calls")


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode())
