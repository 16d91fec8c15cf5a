"""What a sandboxed run costs: `python -m benchmarks.executors`.

The same small programs by the local sandbox over a warm pool, in both tiers, one after another and
at once, and for comparison by a fresh Python without any isolation.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from miner.executors import LocalSandbox
from miner.executors.jail.kernel import landlock_version

RUNS = 200
FRESH = 20
PROGRAM = "print({0} * 37 + 5)"


async def one_by_one(sandbox: LocalSandbox) -> list[float]:
    """Milliseconds of each run, from code in to output out."""
    await sandbox.run("0")
    taken = []
    for number in range(RUNS):
        began = time.perf_counter()
        ran = await sandbox.run(PROGRAM.format(number))
        taken.append(1e3 * (time.perf_counter() - began))
        assert ran.text == str(number * 37 + 5)
        await asyncio.sleep(0.005)  # a policy thinks longer than that between two runs
    return taken


async def at_once(sandbox: LocalSandbox) -> float:
    """Runs a second where many wait."""
    began = time.perf_counter()
    await asyncio.gather(*(sandbox.run(PROGRAM.format(number)) for number in range(RUNS)))
    return RUNS / (time.perf_counter() - began)


def fresh_python() -> list[float]:
    """Milliseconds of each run by a Python that starts for it, with nothing around it."""
    taken = []
    for number in range(FRESH):
        began = time.perf_counter()
        code = PROGRAM.format(number)
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True)
        taken.append(1e3 * (time.perf_counter() - began))
    return taken


async def main() -> None:
    """Print the table."""
    table = Table(title=f"{os.cpu_count()} cores, {RUNS} runs each")
    for column in ("", "median ms", "95 % below ms", "runs/s at once"):
        table.add_column(column, justify="right" if column else "left")
    for landlock in (True, False) if landlock_version() else (False,):
        sandbox = LocalSandbox(landlock=landlock)
        taken = await one_by_one(sandbox)
        table.add_row(
            f"sandbox, {'with' if landlock else 'without'} Landlock",
            *_columns(taken),
            f"{await at_once(sandbox):.0f}",
        )
        await sandbox.close()
    table.add_row("a fresh Python, no isolation", *_columns(fresh_python()), "")
    Console().print(table)


def _columns(taken: list[float]) -> tuple[str, str]:
    return f"{statistics.median(taken):.1f}", f"{statistics.quantiles(taken, n=20)[-1]:.1f}"


if __name__ == "__main__":
    asyncio.run(main())
