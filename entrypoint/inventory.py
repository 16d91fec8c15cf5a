"""Pretended machines for tests and for `--dry-run --gpus 4xH100-80GB`."""

from __future__ import annotations

import re

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.hardware import GIB, Gpu, Hardware

CAPABILITIES = {
    "T4": (7, 5),
    "A100": (8, 0),
    "A6000": (8, 6),
    "RTX4090": (8, 9),
    "L40S": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
}
_FORM = re.compile(r"([1-9]\d?)x([A-Za-z0-9]+)-([1-9]\d*)GB")
# the tournament's container limits (CONTRACT 1.5)
_CPUS_PER_GPU, _MEMORY_PER_GPU = 24, 110 * GIB
_CPUS_WITHOUT, _MEMORY_WITHOUT = 8, 32 * GIB


def pretend_hardware(inventory: str, driver: str = "580.95.05") -> Hardware:
    """A machine of "COUNTxNAME-SIZEGB" ("0": no GPU) with the tournament's limits per GPU.

    Raises: `Failure` (ARGUMENTS) with the forms and names that are known.
    """
    note = f"pretended: {inventory}"
    if inventory == "0":
        return Hardware((), None, _CPUS_WITHOUT, _MEMORY_WITHOUT, 8 * GIB, note)
    match = _FORM.fullmatch(inventory)
    if not match or match[2] not in CAPABILITIES:
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"--gpus is {inventory!r}, expected 0 or a form such as 4xH100-80GB with one of "
            f"{', '.join(CAPABILITIES)}",
        )
    count, name, size = int(match[1]), match[2], int(match[3])
    gpus = tuple(Gpu(i, f"NVIDIA {name}", size * GIB, CAPABILITIES[name]) for i in range(count))
    shared = (8 if count < 4 else 16) * GIB
    return Hardware(gpus, driver, _CPUS_PER_GPU * count, _MEMORY_PER_GPU * count, shared, note)
