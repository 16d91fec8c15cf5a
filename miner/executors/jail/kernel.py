"""Restrictions by the kernel on a process: privileges, files, resources, system calls.

Invariant: each function returns only if what it names is in force, and raises `OSError` if not.
Sources: prctl(2), capabilities(7), landlock(7), getrlimit(2), seccomp(2).
"""

import ctypes
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH, ASK_VERSION = 1, 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
FS_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))
"""From which version of Landlock on how many kinds of access to files it can deny."""
NET_VERSION, SCOPE_VERSION = 4, 6
BOTH_NET_RIGHTS = BOTH_SCOPES = 0b11  # bind and connect; abstract sockets and signals

NOT_STDLIB = frozenset({"site-packages", "dist-packages"})

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class SystemCallFilter:
    """A seccomp program as the kernel takes it, built before the limits that would forbid it.

    Args:
        program: instructions of classic BPF, 8 bytes each.
    """

    def __init__(self, program: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(program, len(program))
        self._program = _Program(len(program) // 8, ctypes.addressof(self._instructions))

    def load(self) -> None:
        """From now on, and in all that this process starts, the filter decides."""
        _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._program))


def give_up_privileges() -> None:
    """No capability is left, none can be gained, and others of the same user cannot look inside."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    checked("capset", libc.capset(header, (ctypes.c_uint32 * 6)()))
    _prctl(PR_SET_DUMPABLE, 0)


def die_with_parent(signal: int) -> None:
    """The kernel sends `signal` to this process when the one that forked it ends."""
    _prctl(PR_SET_PDEATHSIG, signal)


def landlock_version() -> int:
    """Version of Landlock that this kernel has, 0 for none."""
    version: int = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, ASK_VERSION)
    return max(version, 0)


def read_nothing_but(stdlib: Path) -> None:
    """Of all files, only the standard library's own can be opened, and only to be read."""
    version = landlock_version()
    kinds = max(count for since, count in FS_RIGHTS if since <= version)
    ruleset = _Ruleset(
        (1 << kinds) - 1,
        BOTH_NET_RIGHTS if version >= NET_VERSION else 0,
        BOTH_SCOPES if version >= SCOPE_VERSION else 0,
    )
    size = 24 if version >= SCOPE_VERSION else 16 if version >= NET_VERSION else 8
    handle = checked(
        "landlock_create_ruleset",
        libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0),
    )
    for path, access in _readable(stdlib):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _PathBeneath(access, parent)
        added = libc.syscall(LANDLOCK_ADD_RULE, handle, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        checked("landlock_add_rule", added)
        os.close(parent)
    checked("landlock_restrict_self", libc.syscall(LANDLOCK_RESTRICT_SELF, handle, 0))
    os.close(handle)


def limit_resources(memory_bytes: int, cpu_seconds: int, descriptors: int) -> None:
    """Bound memory, processor time and open files; forbid processes, writes and core dumps."""
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_NOFILE, descriptors),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _readable(stdlib: Path) -> Iterator[tuple[str, int]]:
    yield str(stdlib), READ_DIR  # names: the import system lists folders
    for entry in os.scandir(stdlib):
        if entry.name not in NOT_STDLIB:
            yield entry.path, READ_FILE | (READ_DIR if entry.is_dir() else 0)


def _prctl(option: int, value: int, more: int = 0) -> None:
    arguments: Sequence[ctypes.c_ulong] = [ctypes.c_ulong(v) for v in (value, more, 0, 0)]
    checked(f"prctl {option}", libc.prctl(option, *arguments))


def checked(name: str, returned: int) -> int:
    """Return the result of a call of libc. Raises: `OSError` that names the call, for less than
    0."""
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return returned
