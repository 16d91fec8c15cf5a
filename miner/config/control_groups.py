"""Memory and CPUs of the machine, or of the container that this process runs in: its control
groups."""

import os
import re
from pathlib import Path

UNLIMITED_CGROUP_V1 = 1 << 60  # version 1 writes "no limit" as a number near 2**63


def total_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may have: the machine's, or less in a container."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_or_empty(root / "proc/meminfo"), re.MULTILINE)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [int(match[1]) * 1024 if match else pages]
    for folder in cgroup_folders(root, "memory"):
        files = (folder / name for name in ("memory.max", "memory.limit_in_bytes"))
        text = next(filter(None, map(read_or_empty, files)), "")
        if text.isdigit() and int(text) < UNLIMITED_CGROUP_V1:
            limits.append(int(text))
    return min(limits)


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use, at least 1: by its affinity, or fewer by a container's
    quota."""
    quotas = []
    for folder in cgroup_folders(root, "cpu"):
        quota, _, period = read_or_empty(folder / "cpu.max").partition(" ")
        if not quota:
            files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
            quota, period = map(read_or_empty, files)
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux
        allowed = len(os.sched_getaffinity(0))
    return max(1, int(min([allowed, *quotas])))


def cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Control group folders of this process for `controller`, leaf to root, version 2 and 1."""
    folders = []
    for line in read_or_empty(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        leaf = mount / path.strip("/")
        folders += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(mount))]
    return folders


def read_or_empty(path: Path) -> str:
    """A file's text, "" where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
