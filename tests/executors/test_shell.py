"""Bash in a realm: what it can do, what it cannot reach, and that its limits hold."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError
from miner.executors import shell as shell_module
from miner.executors.shell import Ran, RealmShell, ShellLimits
from tests.duel.intercode_shells import require_realms

Play = Callable[[RealmShell], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    require_realms()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "fs1"
    (folder / "testbed" / "d").mkdir(parents=True)
    (folder / "testbed" / "a.txt").write_text("one\ntwo\n")
    return folder


async def _played(files: Path | None, play: Play, limits: ShellLimits) -> Any:
    shell = await RealmShell.start(files, limits)
    try:
        return await play(shell)
    finally:
        await shell.close()


def played(files: Path | None, play: Play, **limits: Any) -> Any:
    return asyncio.run(_played(files, play, ShellLimits(**limits)))


def outputs(commands: list[str], files: Path | None = None, **limits: Any) -> list[str]:
    async def play(shell: RealmShell) -> list[str]:
        return [_text(await shell.run(command, "/")) for command in commands]

    told: list[str] = played(files, play, **limits)
    return told


def _text(ran: Ran) -> str:
    assert ran.output is not None
    return ran.output.decode()


def test_commands_find_the_files_and_what_they_change_is_told(files: Path) -> None:
    async def play(shell: RealmShell) -> dict[str, str | None]:
        assert _text(await shell.run("cat a.txt; ls; pwd", "/testbed")) == (
            "one\ntwo\na.txt\nd\n/testbed\n"
        )
        assert await shell.changes() == {}
        await shell.run("echo three >> /testbed/a.txt; mkdir /testbed/e", "/")
        await shell.run("ln -s a.txt /testbed/link; touch /testbed/$'\\xff'", "/")
        await shell.run("mkdir /secret; echo x > /secret/f; chmod 000 /secret/f /secret", "/")
        return await shell.changes()

    changed = played(files, play)
    assert set(changed) == {"/testbed/a.txt", "/testbed/link", "/testbed/\\xff", "/secret/f"}
    assert (files / "testbed" / "a.txt").read_text() == "one\ntwo\n"
    gone = played(files, lambda shell: _after(shell, "rm /testbed/a.txt"))
    assert gone == {"/testbed/a.txt": None}


async def _after(shell: RealmShell, command: str) -> dict[str, str | None]:
    await shell.run(command, "/")
    return await shell.changes()


def test_equal_changes_have_equal_digests(files: Path) -> None:
    three = played(files, lambda shell: _after(shell, "echo three >> /testbed/a.txt"))
    printed = played(files, lambda shell: _after(shell, "printf 'three\\n' >> /testbed/a.txt"))
    four = played(files, lambda shell: _after(shell, "echo four >> /testbed/a.txt"))
    assert three == printed != four


def test_nothing_of_the_machine_is_in_sight_but_its_programs() -> None:
    mine = Path(__file__)
    seen = outputs(
        [
            f"cat {mine} || echo hidden",
            "ls /proc | grep -c '^[0-9]'",
            "echo x > /usr/bin/planted || echo refused",
            "cat /proc/1/environ /proc/1/mem || echo closed",
            "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status",
            "ls /sys /dev/shm /dev/mem",
        ]
    )
    assert seen[0].endswith("hidden\n")
    assert int(seen[1]) <= 4  # the first process, and the pipe's own
    assert seen[2].endswith("refused\n")
    assert seen[3].endswith("closed\n")
    assert seen[4].split()[1::2] == ["0" * 16, "0" * 16, "1"]
    assert seen[5].count("No such file or directory") == 3


def test_the_kernel_is_not_to_be_talked_to() -> None:
    refused = outputs(
        [
            "unshare -U true || echo refused",
            "unshare -m true || echo refused",
            "mount -t tmpfs none /mnt || echo refused",
            "echo > /dev/tcp/127.0.0.1/80 || echo refused",
            "echo 1 > /proc/sys/kernel/core_pattern || echo refused",
            "kill -9 1; echo alive",
        ]
    )
    assert [text.splitlines()[-1] for text in refused] == ["refused"] * 5 + ["alive"]


def test_what_a_command_started_ends_with_it() -> None:
    seen = outputs(["sleep 1000 & setsid sleep 1000 & echo started", "pgrep -c sleep"])
    assert seen == ["started\n", "0\n"]


def test_time_output_memory_and_files_are_bounded() -> None:
    async def play(shell: RealmShell) -> list[Ran]:
        commands = ["sleep 1000", "yes", "head -c 3M /dev/zero > /big", "echo still here"]
        return [await shell.run(command, "/") for command in commands]

    slow, much, big, after = played(
        None, play, seconds=1.0, output_bytes=1000, disk_bytes=2 * 1024**2
    )
    assert (slow.late, slow.status) == (True, -9)
    assert (much.late, much.output) == (False, b"y\n" * 500)
    assert big.status != 0
    assert after == Ran(b"still here\n")
    [grown] = outputs(["x=$(head -c 200M /dev/zero | tr '\\0' x); echo grown"], seconds=20.0,
                      memory_bytes=64 * 1024**2)  # fmt: skip
    assert "cannot allocate" in grown.lower()


def test_processes_are_bounded() -> None:
    """dash gives up at the first process that it does not get; bash would ask for half a minute."""
    many = "dash -c 'i=0; while [ $i -lt 1000 ]; do sleep 60 & i=$((i+1)); done; echo all of them'"
    [said, after] = outputs([many, "echo alive"], seconds=60.0)
    assert "Cannot fork" in said
    assert "all of them" not in said
    assert after == "alive\n"


def test_deep_folders_and_odd_commands_leave_the_shell_alive() -> None:
    async def play(shell: RealmShell) -> None:
        deep = "d=$(printf 'x/%.0s' $(seq 1900)); mkdir -p $d; cd $d; mkdir -p $d; touch f $d/f"
        assert await shell.run(deep, "/") == Ran(b"")
        assert (await shell.run("echo \0", "/")).status == 127
        assert await shell.run("x" * 100_000, "/") == Ran(None)
        assert await shell.run("ls", "/not/there") == Ran(None)
        assert await shell.run("ls", "/\0\udcff\ud800") == Ran(None)
        await shell.changes()
        assert _text(await shell.run("echo alive", "/")) == "alive\n"

    played(None, play)


def test_an_archive_is_as_good_as_a_folder(files: Path, tmp_path: Path) -> None:
    archive = tmp_path / "fs1.tar"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(files / "testbed", "testbed")
    assert outputs(["cat /testbed/a.txt"], archive) == ["one\ntwo\n"]


def test_a_realm_that_died_is_a_fault_of_infrastructure() -> None:
    async def play(shell: RealmShell) -> None:
        shell._process.kill()
        shell._process.wait()
        with pytest.raises(InfrastructureError, match="realm of a shell"):
            await shell.run("echo hi", "/")

    played(None, play)


@pytest.mark.parametrize(
    ("step", "fails"),
    [("realm.APART = 1", "unshare"), ("realm.PIVOT_ROOT = -1", "pivot_root")],
)
def test_a_machine_that_refuses_a_step_is_told_which_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, step: str, fails: str
) -> None:
    begin, main = shell_module.PROGRAM.split("from jail.shell")
    broken = f"{begin}from jail import realm; {step}; from jail.shell{main}"
    monkeypatch.setattr(shell_module, "PROGRAM", broken)
    with pytest.raises(ConfigurationError, match=rf"no shell can be locked in .*{fails}"):
        played(None, lambda shell: shell.changes())
