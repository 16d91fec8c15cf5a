"""Replacing one folder by another so that a reader, or a SIGKILL, never meets half of one.

Linux can swap two names in one step (`renameat2` with RENAME_EXCHANGE; ext4, xfs, btrfs, tmpfs and
overlayfs do, some network and sandbox file systems do not). Where it cannot, the old folder is
renamed away and the new one renamed in: between the two calls, a few microseconds, the name does
not exist; a kill exactly there is repaired by the next `Publisher`, which puts the old folder back.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from miner.publishing.errors import LockedError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange_folders(first: Path, second: Path) -> None:
    """Swap the two names atomically.

    Raises: `OSError`; kernels, file systems and sandboxes without it use various numbers.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, "this C library has no renameat2")
    result = renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(first), None, str(second))


def replace_folder(new: Path, current: Path, *, aside: Path) -> None:
    """Put `new` where `current` is; the old content ends up at `new` or, in two steps, `aside`.

    A missing or empty `current` is replaced by a plain rename, which is atomic everywhere.
    Raises: `OSError`; `current` is then as it was or, in two steps, perhaps still at `aside`.
    """
    if not current.exists() or (current.is_dir() and not any(current.iterdir())):
        os.rename(new, current)
    else:
        try:
            exchange_folders(new, current)
        except OSError:  # of any number: a real cause stops the renames as well
            os.rename(current, aside)
            os.rename(new, current)
    sync_folder(current.parent)
    sync_folder(new.parent)


def make_durable(folder: Path) -> None:
    """Make all of `folder` readable for everyone and wait until it is on disk.

    The uploader may run as another user, and safetensors writes its files for the owner only.
    """
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            file = Path(root, name)
            file.chmod(0o644)
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        os.chmod(root, 0o755)
        sync_folder(Path(root))


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no fsync of folders there
            raise
    finally:
        os.close(descriptor)


_LOCK = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW


@contextlib.contextmanager
def exclusive_lock(file: Path) -> Iterator[None]:
    """Hold `file` locked against other processes; the kernel releases it when this one dies.

    A POSIX record lock: a forked worker that outlives its killed parent does not inherit it, and
    this process loses it with the first descriptor of `file` that it closes. The file holds the
    owner's pid, and stays.
    Raises: `LockedError` if another process holds it; `OSError` where it is a link.
    """
    with open(os.open(file, _LOCK, 0o666), "a") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # POSIX allows EAGAIN and EACCES
            raise LockedError(file, f"another process (pid {file.read_text() or '?'})") from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the pid
            os.ftruncate(stream.fileno(), 0)
            os.write(stream.fileno(), str(os.getpid()).encode())
        yield
