"""CUDA's forward-compatibility libraries: CUDA 13 on data-center GPUs whose driver is older.

They replace the driver's own libcuda, in the processes of the run alone. The image holds them
where its build could fetch them.
Source: https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIBRARIES = Path("/usr/local/cuda-compat")
OLDEST_DRIVER = 580
"""The first for CUDA 13."""
_TIMEOUT = 120.0  # seconds; eight GPUs without a persistence daemon take a while
_NOT_A_DATA_CENTER_GPU = 804  # CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
_START = """
import ctypes
cuda, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
status = cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version))
print(status, version.value)
"""


def is_new_enough(driver: str | None) -> bool:
    """Return whether CUDA 13 runs on `driver` ("570.86.10") without other libraries."""
    major = (driver or "").partition(".")[0]
    return major.isdigit() and int(major) >= OLDEST_DRIVER


def start_error(libraries: Path) -> str:
    """Start CUDA in a process that finds `libraries` first. Returns: why it fails, "" if not."""
    if not (libraries / "libcuda.so.1").exists():
        return "this image was built without CUDA's forward-compatibility libraries"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START],
            env=os.environ | library_path(libraries, os.environ),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        return f"CUDA's forward-compatibility libraries do not start: {error}"
    status, version = map(int, done.stdout.split())
    if status == _NOT_A_DATA_CENTER_GPU:
        return "CUDA's forward-compatibility libraries are for data-center GPUs only"
    if status or version < 13_000:
        return f"CUDA's forward-compatibility libraries answer {status}, version {version}"
    return ""


def library_path(libraries: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables by which loader and Triton find `libraries` before the driver's own."""
    paths = (str(libraries), inherited.get("LD_LIBRARY_PATH"))
    joined = os.pathsep.join(filter(None, paths))
    return {"LD_LIBRARY_PATH": joined, "TRITON_LIBCUDA_PATH": str(libraries)}
