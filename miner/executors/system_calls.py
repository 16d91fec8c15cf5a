"""The list of system calls that code may make, compiled by libseccomp.

Invariants:
* what is not listed fails with EPERM, which code sees as a `PermissionError`; a call by another
  ABI (32 bits, x32) kills the process;
* nothing listed reaches beyond the process: no process, thread, socket, signal, file to write, or
  limit can be made or changed.
"""

import errno
import importlib
import os
from functools import lru_cache
from types import ModuleType
from typing import Any

from miner.config.errors import ConfigurationError

EVERYWHERE = (
    "brk", "mmap", "munmap", "mprotect", "mremap", "madvise",
    "read", "write", "readv", "writev", "close", "lseek",
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getrusage", "times",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall",
    "futex", "sched_yield", "getcpu", "getrandom", "exit", "exit_group",
)  # fmt: skip

READING = ("fstat", "newfstatat", "getdents64", "getcwd")
"""On top where Landlock decides which files are opened."""
LOOKING_AT_DESCRIPTORS = (1, 3)  # fcntl's F_GETFD and F_GETFL; others send signals
NOT_TO_READ = (
    os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_PATH
    | (os.O_TMPFILE & ~os.O_DIRECTORY)
)  # fmt: skip


@lru_cache(maxsize=2)
def system_call_filter(*, files: bool) -> bytes:
    """The filter as instructions of classic BPF.

    Args:
        files: true if files may be opened for reading at all; only with Landlock.

    Raises: `ConfigurationError` where libseccomp is missing.
    """
    lib = _libseccomp()
    rules = lib.SyscallFilter(lib.ERRNO(errno.EPERM))
    rules.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
    for name in EVERYWHERE + (READING if files else ()):
        rules.add_rule(lib.ALLOW, name)
    for command in LOOKING_AT_DESCRIPTORS:
        rules.add_rule(lib.ALLOW, "fcntl", lib.Arg(1, lib.EQ, command))
    if files:
        rules.add_rule(lib.ALLOW, "openat", lib.Arg(2, lib.MASKED_EQ, NOT_TO_READ, os.O_RDONLY))
    return _program(rules)


def _program(rules: Any) -> bytes:
    with os.fdopen(os.memfd_create("filter"), "rb") as program:
        rules.export_bpf(program)
        program.seek(0)
        return program.read()


def _libseccomp() -> ModuleType:
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"no system calls can be filtered ({error}), and code is never run without that: "
            "install pyseccomp and the library libseccomp2 (Debian), or choose E2B as the executor",
        ) from error
