"""Hardware that the container may use: GPUs (by NVML), CPUs, memory, shared memory.

Invariant: limits of the container (cgroups, CPU affinity, CUDA_VISIBLE_DEVICES) are respected, so
the numbers are what is ours, not what the host has. Sizes are bytes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pynvml

from entrypoint.exit_status import ExitStatus, Failure

GIB = 1 << 30
UNLIMITED_CGROUP_V1 = 1 << 60  # version 1 writes "no limit" as a number near 2**63


@dataclass(frozen=True)
class Gpu:
    """One GPU: NVML index, product name, bytes of memory, compute capability."""

    index: int
    name: str
    memory: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Hardware:
    """The machine as the container may use it.

    Attributes:
        driver: NVIDIA driver version, None without a driver.
        note: why there are no GPUs, or that the inventory is pretended; empty otherwise.
        cuda_libraries: folder that CUDA is taken from where the driver is too old, else None.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    cpus: int
    memory: int
    shared_memory: int
    note: str = ""
    cuda_libraries: Path | None = None

    def without_gpus(self, note: str) -> Hardware:
        """The same machine, its GPUs left alone for the reason given."""
        return replace(self, gpus=(), note=note)


def detect_hardware(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Hardware:
    """Ask NVML, the kernel and the control groups. `root` is where proc and sys are mounted."""
    gpus, driver, note = _detect_gpus(environ.get("CUDA_VISIBLE_DEVICES"))
    return Hardware(
        gpus=gpus,
        driver=driver,
        cpus=_count_cpus(root),
        memory=_total_memory(root),
        shared_memory=_shared_memory(root / "dev/shm"),
        note=note,
    )


def _detect_gpus(visible: str | None) -> tuple[tuple[Gpu, ...], str | None, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), None, f"no NVIDIA driver: {error}"
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        found = [_describe_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise Failure(
            ExitStatus.GPU,
            f"the NVIDIA driver is there, but does not answer ({error}): "
            "check nvidia-smi on the host",
        ) from None
    finally:
        pynvml.nvmlShutdown()
    chosen = select_visible([(gpu, uuid) for gpu, uuid in found], visible)
    return chosen, driver, "" if chosen else "the driver shows no GPU to this container"


def _describe_gpu(index: int) -> tuple[Gpu, str]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    gpu = Gpu(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=(major, minor),
    )
    return gpu, pynvml.nvmlDeviceGetUUID(handle)


def select_visible(found: list[tuple[Gpu, str]], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; None leaves all.

    As in CUDA, entries are indices or prefixes of UUIDs, and the first unknown one ends the list.
    """
    if visible is None:
        return tuple(gpu for gpu, _ in found)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        matches = [
            gpu
            for gpu, uuid in found
            if entry == str(gpu.index) or (entry.startswith("GPU-") and uuid.startswith(entry))
        ]
        if not matches:
            break
        chosen += matches[:1]
    return tuple(chosen)


def _count_cpus(root: Path) -> int:
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    allowed = len(os.sched_getaffinity(0))
    return max(1, int(min([allowed, *quotas])))


def _total_memory(root: Path) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(match[1]) * 1024] if match else []
    for folder in _cgroup_folders(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text.isdigit() and int(text) < UNLIMITED_CGROUP_V1:
            limits.append(int(text))
    return min(limits, default=0)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Control group folders of this process for `controller`, leaf to root, version 2 and 1."""
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
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


def _shared_memory(path: Path) -> int:
    return shutil.disk_usage(path).total if path.is_dir() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
