"""A shell by rote, for the commands of the recorded tasks."""

from __future__ import annotations

from miner.duel.intercode.reward import Changes
from miner.executors.shell import Ran

OUTPUTS = {
    "cat /testbed/a.txt": "one\ntwo\n",
    "echo zebra": "zebra\n",
    "echo ok": "ok\n",
    "seq 1 300": "".join(f"{n}\n" for n in range(1, 301)),
    "ls /testbed": "a.txt\nd\n",
    "cd /testbed && ls": "a.txt\nd\n",
}
FILES = {
    "touch /testbed/extra": ("/testbed/extra", ""),
    "echo three >> /testbed/a.txt": ("/testbed/a.txt", "one\ntwo\nthree\n"),
    "echo four >> /testbed/a.txt": ("/testbed/a.txt", "one\ntwo\nfour\n"),
}
FOLDERS = ("/", "/testbed", "/testbed/d")


class ShellByRote:
    """Knows by heart what the recorded commands do to fs1."""

    def __init__(self) -> None:
        self._changes: dict[str, str | None] = {}

    async def run(self, command: str, folder: str) -> Ran:
        if folder not in FOLDERS:
            return Ran(None)
        if command == "ls /no/such/path":
            return Ran(b"ls: cannot access '/no/such/path': No such file or directory\n", 2)
        return Ran(self._output(command, folder).encode())

    def _output(self, command: str, folder: str) -> str:
        if command in FILES:
            path, content = FILES[command]
            self._changes[path] = content
            return ""
        if command == "ls":
            return OUTPUTS[f"ls {folder}"]
        if command == "pwd":
            return f"{folder}\n"
        if command == "true" or command.removeprefix("cd ") in FOLDERS:
            return ""
        return OUTPUTS[command]

    async def changes(self) -> Changes:
        return self._changes

    async def close(self) -> None:
        return
