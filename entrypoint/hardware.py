"""Hardware that the container may use: GPUs (by NVML), CPUs, memory, shared memory.

Invariant: limits of the container (cgroups, CPU affinity, CUDA_VISIBLE_DEVICES) are respected, so
the numbers are what is ours, not what the host has. Sizes are bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pynvml

from miner.config.control_groups import total_memory, usable_cpus

GIB = 1 << 30
UNUSABLE = "GPUs that cannot be used"
"""Part of a note on GPUs that are there all the same."""
ADVICE = "check nvidia-smi on the host"


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
        note: reason for no GPUs, or for fewer than there are, or a note on a pretended inventory;
            empty otherwise.
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
        cpus=usable_cpus(root),
        memory=total_memory(root),
        shared_memory=_shared_memory(root / "dev/shm"),
        note=note,
    )


def _detect_gpus(visible: str | None) -> tuple[tuple[Gpu, ...], str | None, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), None, f"no NVIDIA driver: {error}"
    found: list[tuple[Gpu, str]] = []
    lost: list[str] = []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_describe_gpu(index))
            except pynvml.NVMLError as error:
                lost.append(f"GPU {index} ({error})")
    except pynvml.NVMLError as error:
        return (), None, f"{UNUSABLE}: the NVIDIA driver does not answer ({error}): {ADVICE}"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    chosen = select_visible(found, visible, lost=bool(lost))
    if lost:
        return chosen, driver, f"{UNUSABLE}: no answer from {', '.join(lost)}: {ADVICE}"
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


def select_visible(
    found: list[tuple[Gpu, str]], visible: str | None, *, lost: bool = False
) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; None leaves all.

    As in CUDA, entries are indices or prefixes of UUIDs, and the first unknown one ends the list.

    Args:
        lost: true if there are GPUs beside those found; an unknown entry is skipped then, as it may
            name one.
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
        if not (matches or lost):
            break
        chosen += matches[:1]
    return tuple(chosen)


def _shared_memory(path: Path) -> int:
    return shutil.disk_usage(path).total if path.is_dir() else 0
