"""The process in which one piece of code runs: locked first, then given the code.

Invariants:
* `READY` is written only when every restriction is in force, and the code is read only after it;
* what comes after `READY` on the way out was written by the code, except the end of a traceback.
"""

import ast
import linecache
import os
import random
import signal
import sys
import traceback
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from . import kernel

READY = b"\n"
FAILED, OUT_OF_MEMORY = 1, 2  # exit statuses
NAME = "<code>"
DESCRIPTORS = 16
SAME_SEED = 0  # equal code gives equal output


@dataclass(frozen=True)
class Rules:
    """Limits of a worker: see `kernel.limit_resources` and `kernel.SystemCallFilter`."""

    memory_bytes: int
    cpu_seconds: int
    system_calls: kernel.SystemCallFilter


def live(rules: Rules, talk: int, complain: int) -> NoReturn:
    """Lock this process, read the code from `talk` until its end, run it and exit.

    Args:
        talk: descriptor that brings the code and takes what it prints.
        complain: descriptor that takes its stderr.
    """
    for there, here in ((talk, 0), (talk, 1), (complain, 2)):
        os.dup2(there, here)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    kernel.die_with_parent(signal.SIGKILL)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    kernel.limit_resources(rules.memory_bytes, rules.cpu_seconds, DESCRIPTORS)
    rules.system_calls.load()
    os.write(1, READY)
    os._exit(_run(sys.stdin.read()))


def _run(source: str) -> int:
    lines = [f"{line}\n" for line in source.splitlines()]
    linecache.cache[NAME] = (len(source), None, lines, NAME)
    random.seed(SAME_SEED)
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        for code in _compiled(source):
            exec(code, names)
        status = 0
    except SystemExit as end:
        status = _status(end)
    except MemoryError as error:
        names.clear()  # room to speak of it
        _complain(error)
        status = OUT_OF_MEMORY
    except BaseException as error:
        _complain(error)
        status = FAILED
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    return status


def _compiled(source: str) -> list[CodeType]:
    """The program; if it ends on an expression, the value is shown as at Python's prompt."""
    module = ast.parse(source, NAME)
    last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
    codes = [compile(module, NAME, "exec")]
    if isinstance(last, ast.Expr):
        codes.append(compile(ast.Interactive([last]), NAME, "single"))
    return codes


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return FAILED


def _complain(error: BaseException) -> None:
    """Print the traceback: the code's own frames, so that equal code complains equally anywhere."""
    try:
        report = traceback.TracebackException.from_exception(error)
        link: traceback.TracebackException | None = report
        while link is not None:
            link.stack[:] = [frame for frame in link.stack if frame.filename == NAME]
            link = link.__cause__ or link.__context__
        print("".join(report.format()), end="", file=sys.stderr)
    except BaseException:  # an exception whose own methods fail; it has a type all the same
        _flush(sys.stderr)
        os.write(2, f"{type(error).__name__}\n".encode())


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except BaseException:  # the code may have closed it or put anything in its place
        return
