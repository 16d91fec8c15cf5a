"""A shell by rote, for the commands of the recorded tasks."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.intercode.reward import Changes
from miner.executors.shell import Ran, RealmShell

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


@cache
def missing_realms() -> str:
    """Why this machine makes no realms; empty if it does."""

    async def one() -> None:
        await (await RealmShell.start(None)).close()

    try:
        asyncio.run(one())
    except ConfigurationError as error:
        return str(error)
    return ""


def require_realms() -> None:
    """Skip where this machine makes none."""
    if missing_realms():
        pytest.skip(f"no realms here: {missing_realms()}")


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


async def by_rote(files: Path | None) -> ShellByRote:
    """One that holds nothing but what it knows."""
    return ShellByRote()


def task_folder(folder: Path) -> Path:
    """A folder of tasks as a user would make it, about the file system of the recorded ones."""
    (folder / "fs1" / "testbed" / "d").mkdir(parents=True)
    (folder / "fs1" / "testbed" / "a.txt").write_text("one\ntwo\n")
    of_files = [
        {"query": "Print a.txt", "gold": "cat /testbed/a.txt"},
        {"query": "Append", "gold": ["echo three >> /testbed/a.txt", "true"]},
    ]
    plain = [{"query": "Echo", "gold": "echo ok"}, {"query": "Count", "gold": "seq 1 300"}]
    (folder / "nl2bash_fs_1.json").write_text(json.dumps(of_files))
    (folder / "nl2bash_fs_4.json").write_text(json.dumps(plain))
    return folder
