"""The local sandbox: code's output and failures, limits, and what becomes of a broken executor."""

import asyncio
import os
import select
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError
from miner.executors import CodeFailure, Execution, Limits, LocalSandbox, fork_server
from miner.executors.jail.kernel import landlock_version
from miner.executors.sandbox import WARM, _Run

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="no Landlock in this kernel")


@pytest.fixture(params=[True, False], ids=["landlock", "no landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    if request.param and not landlock_version():
        pytest.skip("no Landlock in this kernel")
    box = LocalSandbox(Limits(seconds=20.0, output_bytes=1000), landlock=request.param)
    yield box
    await box.close()


PROGRAMS = {
    "print(1 + 2)": "3",
    "x = 20\nx * 2 + 2": "42",
    "print('a')\n'b'": "a\n'b'",
    "": "",
    "import json, re, math\nprint(json.dumps({'x': math.floor(2.5)}), re.sub('a', 'b', 'aa'))": (
        '{"x": 2} bb'
    ),
    "from decimal import Decimal\nprint(sum([Decimal('0.1')] * 3))": "0.3",
    "import datetime, time\ntime.sleep(0.01); print(datetime.date(2020, 2, 28).isoformat())": (
        "2020-02-28"
    ),
    "print(len([n * n for n in range(1_000_000)]))": "1000000",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\nA(1)": "A(x=1)",
    "print('ä€')": "ä€",
    "import sys; sys.exit()": "",
    "print(__name__)": "__main__",
}


async def test_ordinary_programs_run(sandbox: LocalSandbox) -> None:
    ran = {code: await sandbox.run(code) for code in PROGRAMS}
    assert {code: run.text for code, run in ran.items()} == PROGRAMS
    assert all(run.failure is None for run in ran.values())


FAILURES = {
    "print('so far')\nx = y": (
        "so far\n",
        "exception",
        'Traceback (most recent call last):\n  File "<code>", line 2, in <module>\n    x = y\n'
        "        ^\nNameError: name 'y' is not defined",
    ),
    "import re\nre.compile('(')": ("", "exception", None),
    "x = (": ("", "exception", None),
    "class E(Exception):\n  def __str__(self): 1 / 0\nraise E": ("", "exception", None),
    "import sys; sys.exit(3)": ("", "exit", "exited with status 3"),
    "import sys; sys.exit('why')": ("", "exception", "why"),
    "x = bytearray(10**9)": ("", "memory", None),
    "print('x' * 1001)": ("x" * 1000, "output", "stopped: more than 1,000 bytes printed"),
    "import os; os.kill(os.getpid(), 9)": ("", "exception", None),
    "x = 1 " * 100_000: ("", "size", "the code has 600,000 bytes, at most 65,536 are run"),
}


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code[:20])
async def test_code_that_fails_is_a_result(sandbox: LocalSandbox, code: str) -> None:
    output, kind, message = FAILURES[code]
    ran = await sandbox.run(code)
    assert ran.failure is not None
    assert (ran.output, ran.failure.kind) == (output, kind)
    assert message is None or ran.failure.message == message
    assert "jail" not in ran.text, "frames of the executor are none of the policy's business"


async def test_equal_code_has_equal_output_even_where_chance_is_asked(
    sandbox: LocalSandbox,
) -> None:
    code = "import random\nprint(random.random(), hash('x'), sorted({'a', 'b'}, key=hash))"
    assert len({(await sandbox.run(code)).text for _ in range(3)}) == 1


async def test_nothing_stays_from_one_run_to_the_next(sandbox: LocalSandbox) -> None:
    await sandbox.run("import json\njson.x = y = 1")
    assert (await sandbox.run("import json\nhasattr(json, 'x'), 'y' in globals()")).text == (
        "(False, False)"
    )


async def test_results_come_in_the_order_of_the_questions(sandbox: LocalSandbox) -> None:
    codes = [f"import time; time.sleep({(n % 3) / 50}); print({n})" for n in range(24)]
    ran = await asyncio.gather(*map(sandbox.run, codes))
    assert [run.output for run in ran] == [f"{n}\n" for n in range(24)]


async def test_time_is_bounded() -> None:
    sandbox = LocalSandbox(Limits(seconds=2.0))
    ran = await sandbox.run("print('so far', flush=True)\nwhile True: pass")
    assert ran == Execution("so far\n", CodeFailure("time", "stopped: not finished after 2 s"))
    await sandbox.close()


async def test_code_that_ends_while_the_loop_stalls_is_not_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox, send = LocalSandbox(Limits(seconds=1.0)), _Run._send

    async def send_and_stall(run: _Run, code: str) -> None:
        await send(run, code)
        select.select([run._server._control], [], [])  # the code's end is reported
        time.sleep(1.0)  # noqa: ASYNC251 (the loop is to stall)

    monkeypatch.setattr(_Run, "_send", send_and_stall)
    assert await sandbox.run("print(6 * 7)") == Execution("42\n")
    await sandbox.close()


def test_a_containers_cpus_bound_the_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miner.executors.sandbox.usable_cpus", lambda: 2)
    assert LocalSandbox()._places._value == 2


@needs_landlock
async def test_the_whole_standard_library_is_there_only_with_landlock() -> None:
    code = "import csv, difflib; difflib.get_close_matches('appel', ['apple'])"
    with_it, without = LocalSandbox(landlock=True), LocalSandbox(landlock=False)
    assert (await with_it.run(code)).text == "['apple']"
    assert "ModuleNotFoundError" in (await without.run(code)).text
    await with_it.close()
    await without.close()


async def fork_server_of(sandbox: LocalSandbox) -> int:
    return int((await sandbox.run("import os; print(os.getppid())")).text)


async def test_a_fork_server_that_dies_is_not_a_result_and_is_replaced(
    sandbox: LocalSandbox,
) -> None:
    first = await fork_server_of(sandbox)
    sleeping = asyncio.create_task(sandbox.run("import time; time.sleep(15)"))
    await asyncio.sleep(0)  # the run has its place
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()  # noqa: ASYNC240
    os.kill(first, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="fork server"):
        await sleeping
    assert (await sandbox.run("6 * 7")).text == "42"
    assert await fork_server_of(sandbox) != first
    assert all([await gone(int(child)) for child in children])


async def test_abandoned_runs_leave_nothing_to_the_next_ones(sandbox: LocalSandbox) -> None:
    """A socket that the loop still watches when it is closed keeps the next one of its number from
    being heard."""
    for _ in range(2):
        runs = [asyncio.create_task(sandbox.run("import time; time.sleep(60)")) for _ in range(2)]
        await asyncio.sleep(0.3)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        async with asyncio.timeout(25):
            for _ in range(WARM + 2):
                assert (await sandbox.run("6 * 7")).text == "42"
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert "_Run._read" not in names


async def test_a_run_that_is_abandoned_ends(sandbox: LocalSandbox) -> None:
    server = await fork_server_of(sandbox)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sandbox.run("print('x' * 999, flush=True)\nwhile True: pass")
    assert (await sandbox.run("6 * 7")).text == "42"
    await sandbox.close()
    assert await gone(server)


async def gone(pid: int) -> bool:
    """True if a process ends, as it must."""
    while running(pid):  # noqa: ASYNC110 (a process of the kernel's, which tells nobody)
        await asyncio.sleep(0.01)
    return True


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_without_libseccomp_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    fork_server.system_call_filter.cache_clear()
    with pytest.raises(ConfigurationError, match="code is never run without that"):
        asyncio.run(LocalSandbox(landlock=False).run("1"))


@pytest.mark.parametrize(
    "program",
    [struct.pack("<HBBI", 0xFFFF, 0, 0, 0), struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)],
    ids=["the kernel takes no filter", "the filter lets everything through"],
)
async def test_a_kernel_that_does_not_lock_is_refused(
    monkeypatch: pytest.MonkeyPatch, program: bytes
) -> None:
    monkeypatch.setattr(fork_server, "system_call_filter", lambda files: program)
    with pytest.raises(ConfigurationError, match=r"seccomp.*never run outside"):
        await LocalSandbox(landlock=False).run("print('BREACH')")


async def test_landlock_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miner.executors.sandbox.landlock_version", lambda: 0)
    with pytest.raises(ConfigurationError, match="no Landlock"):
        LocalSandbox(landlock=True)
    assert LocalSandbox().landlock is False


async def test_code_sees_nothing_of_our_environment(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    shown = await sandbox.run("import os; print(os.environ.get('HF_TOKEN'))")
    assert shown.text.strip() == "None"
