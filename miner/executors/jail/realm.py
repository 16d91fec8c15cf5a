"""A file system of its own for a process, made of nothing but memory and this machine's programs.

Invariants:
* after `enter` nothing of the machine's files is left in sight but its programs and libraries
  (below /usr, to be read only), and a handful of devices; all else lies in memory and is bounded;
* there is no network, and no other process is in sight;
* the process is the first of its own, so that all others end with it.
Each function raises `OSError` that names the step which the kernel refuses.
Sources: user_namespaces(7), mount_namespaces(7), pid_namespaces(7), pivot_root(2), mount(2),
mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

from . import kernel

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
APART = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PIVOT_ROOT, MOUNT_SETATTR = 155, 442
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_CAPBSET_DROP = 24
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")

STAGE = "/tmp"
"""Where the new root is put together, out of everybody else's sight."""
PROGRAMS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share")
FOLDERS = (
    "dev",
    "etc",
    "home",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "tmp",
    "usr",
    "var/tmp",
)
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
}
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
HOST_NAME = "testbed"
NOBODY = 65534


class _Attributes(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")
    )


def part() -> None:
    """Leave this machine's names behind; the next fork is the first process of its own.

    Within, it is root; outside it is nobody (where it was root) or whoever it was.
    """
    outer = (os.getuid(), os.getgid())
    if outer[0] == 0:
        os.setgroups([])
        outer = (NOBODY, NOBODY)
    ready, part_done = os.pipe()
    target = os.getpid()
    mapped, told = os.pipe()
    mapper = os.fork()  # names may be given only by a process that has stayed outside
    if mapper == 0:
        try:
            os.close(part_done)
            os.read(ready, 1)
            _write(f"/proc/{target}/setgroups", "deny")
            _write(f"/proc/{target}/gid_map", f"0 {outer[1]} 1")
            _write(f"/proc/{target}/uid_map", f"0 {outer[0]} 1")
            os.write(told, b"+")
        finally:
            os._exit(0)
    os.close(told)
    try:
        kernel.checked("unshare", kernel.libc.unshare(APART))
    finally:
        os.close(part_done)
        done = os.read(mapped, 1)
        os.waitpid(mapper, 0)
        os.close(ready)
        os.close(mapped)
    if not done:
        raise OSError("the new user namespace cannot be given a user (uid_map)")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def enter(size_bytes: int, entries: int) -> None:
    """Put the new root together and go there. For the first process after `part`.

    Args:
        size_bytes: most that files may hold together.
        entries: most files and folders.
    """
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    options = f"size={size_bytes},nr_inodes={entries},mode=0755"
    _mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for folder in FOLDERS:
        os.makedirs(f"{STAGE}/{folder}")
    for folder in ("tmp", "var/tmp"):
        os.chmod(f"{STAGE}/{folder}", 0o1777)
    for name in PROGRAMS:
        _show(f"/usr/{name}")
        _show(f"/{name}")
    for name in DEVICES:
        os.close(os.open(f"{STAGE}/dev/{name}", os.O_CREAT, 0o644))
        _mount(f"/dev/{name}", f"{STAGE}/dev/{name}", None, MS_BIND)
    for place, target in LINKS.items():
        os.symlink(target, f"{STAGE}/{place}")
    for place, text in TEXTS.items():
        _write(f"{STAGE}/{place}", text)
    _copy_links("/etc/alternatives")
    quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _mount("proc", f"{STAGE}/proc", "proc", quiet | MS_RDONLY)
    os.chdir(STAGE)
    kernel.checked("pivot_root", kernel.libc.syscall(PIVOT_ROOT, b".", b"."))
    kernel.checked("umount of the old root", kernel.libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    socket.sethostname(HOST_NAME)


def drop_privileges() -> None:
    """No capability is left, nor can one come back, whatever is executed."""
    last = int(LAST_CAPABILITY.read_text())
    for capability in range(last + 1):
        kernel.checked(
            "prctl PR_CAPBSET_DROP", kernel.libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        )
    kernel.give_up_privileges()


def _show(path: str) -> None:
    """The machine's own `path`, to be read only; where it is a link, a link."""
    there = Path(path)
    if there.is_symlink():
        os.symlink(os.readlink(path), f"{STAGE}{path}")
    elif there.is_dir():
        os.mkdir(f"{STAGE}{path}")
        _mount(path, f"{STAGE}{path}", None, MS_BIND | MS_REC)
        wanted = _Attributes(set=MS_RDONLY | MS_NOSUID | MS_NODEV)
        changed = kernel.libc.syscall(
            MOUNT_SETATTR,
            AT_FDCWD,
            f"{STAGE}{path}".encode(),
            AT_RECURSIVE,
            ctypes.byref(wanted),
            ctypes.c_size_t(ctypes.sizeof(wanted)),
        )
        kernel.checked(f"mount_setattr of {path}", changed)


def _copy_links(folder: str) -> None:
    """Programs such as awk are links by way of there."""
    if not os.path.isdir(folder):
        return
    os.mkdir(f"{STAGE}{folder}")
    for entry in os.scandir(folder):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), f"{STAGE}{entry.path}")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    done = kernel.libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    kernel.checked(f"mount of {kind or source or 'nothing'} on {target}", done)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
