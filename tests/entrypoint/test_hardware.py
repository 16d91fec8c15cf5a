"""Hardware that the container may use: control groups, visible devices, pretended inventories."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from entrypoint.batch import BatchShape
from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.hardware import GIB, Gpu, detect_hardware, select_visible
from entrypoint.preflight import check_gpus, usable
from entrypoint.pretended import SIZES, pretend_hardware
from entrypoint.topology import plan_topology


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root folder with a 64 GiB /proc/meminfo and the given files."""
    for name, text in ({"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\n"} | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, 64 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 64 * GIB),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
            },
            4 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            64 * GIB,
        ),
    ],
    ids=["no cgroup", "v2", "v2 max", "v2 parent", "v1", "v1 unlimited"],
)
def test_memory_respects_control_groups(tmp_path: Path, files: dict[str, str], memory: int) -> None:
    assert detect_hardware({}, machine(tmp_path, files)).memory == memory


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
    ],
    ids=["v2, 1.5", "v1, 1", "half a CPU"],
)
def test_cpus_respect_control_groups(tmp_path: Path, files: dict[str, str]) -> None:
    assert detect_hardware({}, machine(tmp_path, files)).cpus == 1


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    hardware = detect_hardware({}, machine(tmp_path, {}))
    if hardware.driver is not None:
        pytest.skip("this machine has an NVIDIA driver")
    assert hardware.gpus == ()
    assert "no NVIDIA driver" in hardware.note


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML's functions over two GPUs."""
    fake = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        open=False,
        nvmlInit=lambda: setattr(fake, "open", True),
        nvmlShutdown=lambda: setattr(fake, "open", False),
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * GIB),
    )
    monkeypatch.setattr("entrypoint.hardware.pynvml", fake)
    return fake


def test_gpus_are_described_by_nvml(tmp_path: Path, nvml: SimpleNamespace) -> None:
    hardware = detect_hardware({"CUDA_VISIBLE_DEVICES": "1"}, machine(tmp_path, {}))
    assert hardware.gpus == (Gpu(1, "NVIDIA H100 80GB HBM3", 80 * GIB, (9, 0)),)
    assert (hardware.driver, hardware.note) == ("580.95.05", "")
    assert not nvml.open


def lost(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


@pytest.mark.parametrize("query", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"])
def test_a_driver_that_does_not_answer_is_as_good_as_none(
    tmp_path: Path, nvml: SimpleNamespace, query: str
) -> None:
    setattr(nvml, query, lost)
    hardware = usable(detect_hardware({}, machine(tmp_path, {})))
    assert (hardware.gpus, hardware.driver) == ((), None)
    (line,) = check_gpus(hardware)
    assert line.level == "warn"
    assert "does not answer (GPU is lost)" in line.message
    assert "one CPU process" in line.message
    assert not nvml.open


@pytest.mark.parametrize("visible", [None, "0,1", "GPU-0,GPU-1"])
@pytest.mark.parametrize("gone", [0, 1])
def test_a_gpu_that_does_not_answer_is_left_out_and_the_others_keep_their_numbers(
    tmp_path: Path, nvml: SimpleNamespace, visible: str | None, gone: int
) -> None:
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: (
        lost() if handle == gone else SimpleNamespace(total=80 * GIB)
    )
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    hardware = usable(detect_hardware(environ, machine(tmp_path, {})))
    assert [gpu.index for gpu in hardware.gpus] == [1 - gone]
    warned = [line.message for line in check_gpus(hardware) if line.level == "warn"]
    assert len(warned) == 1
    assert f"no answer from GPU {gone} (GPU is lost)" in warned[0]
    topology = plan_topology(hardware, SIZES["3B"], BatchShape())
    assert topology.trainer_gpus == (1 - gone,)


def test_without_a_gpu_that_answers_the_cpu_process_is_planned(
    tmp_path: Path, nvml: SimpleNamespace
) -> None:
    nvml.nvmlDeviceGetHandleByIndex = lost
    hardware = usable(detect_hardware({}, machine(tmp_path, {})))
    assert hardware.gpus == ()
    assert "GPU 0 (GPU is lost), GPU 1 (GPU is lost)" in hardware.note
    assert plan_topology(hardware, SIZES["3B"], BatchShape()).layout == "cpu"


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
    ],
)
def test_visible_devices_are_respected(visible: str | None, indices: list[int]) -> None:
    found = [
        (Gpu(i, "H100", GIB, (9, 0)), f"GPU-{letter}")
        for i, letter in enumerate(("aa11", "bb22", "cc33"))
    ]
    assert [gpu.index for gpu in select_visible(found, visible)] == indices


def test_pretended_inventory_has_the_tournaments_limits() -> None:
    hardware = pretend_hardware("4xH100-80GB")
    assert [gpu.index for gpu in hardware.gpus] == [0, 1, 2, 3]
    assert hardware.gpus[0].memory == 80 * GIB
    assert hardware.gpus[0].capability == (9, 0)
    assert (hardware.cpus, hardware.memory) == (96, 440 * GIB)
    assert hardware.shared_memory == 16 * GIB


@pytest.mark.parametrize("inventory", ["", "4", "0xH100-80GB", "2xH100", "2xABACUS-80GB", "H100"])
def test_unknown_inventories_are_explained(inventory: str) -> None:
    with pytest.raises(Failure, match="4xH100-80GB") as caught:
        pretend_hardware(inventory)
    assert caught.value.status == ExitStatus.ARGUMENTS
