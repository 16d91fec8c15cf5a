"""Checks before the run, each with its line and its way out."""

import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint import preflight, probes
from entrypoint.environment import program_environment
from entrypoint.exit_status import ExitStatus
from entrypoint.hardware import GIB
from entrypoint.model_facts import ModelFacts
from entrypoint.paths import Paths
from entrypoint.pretended import pretend_hardware
from entrypoint.probes import health_error, health_errors
from entrypoint.topology import ModelShape

SILENT = "http://127.0.0.1:1"  # nobody listens on port 1
FACTS = ModelFacts(
    "Qwen2ForCausalLM", "BF16", 2 * GIB, ModelShape(GIB, 2, 64, 128, 4, 2, 16, 300, 2048), True, ()
)
Serve = Callable[..., Any]


def check_servers(*servers: str, channel: str = "auto", seconds: float = 0.2) -> preflight.Check:
    return preflight.check_servers(
        servers, channel, seconds=seconds, stop=threading.Event(), every=0.02
    )


LIBCUDA = """
int cuInit(unsigned flags) {{ return {status}; }}
int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
"""


@pytest.fixture
def build_libcuda(tmp_path: Path) -> Callable[[int, int], Path]:
    """Makes a folder with a stand-in for libcuda that answers with a status and a version."""

    def build(status: int, version: int) -> Path:
        source = LIBCUDA.format(status=status, version=version).encode()
        command = ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "libcuda.so.1")]
        subprocess.run(command, input=source, check=True)
        return tmp_path

    return build


@pytest.mark.parametrize("driver", ["580.95.05", "595.1"])
def test_a_driver_for_cuda_13_needs_no_other_libraries(driver: str, tmp_path: Path) -> None:
    hardware = preflight.usable(pretend_hardware("2xH100-80GB", driver=driver), tmp_path)
    assert len(hardware.gpus) == 2
    assert hardware.cuda_libraries is None


@pytest.mark.parametrize("driver", ["575.57.08", "470", ""])
def test_with_a_driver_too_old_and_no_libraries_the_cpu_publishes_the_base(
    driver: str, tmp_path: Path
) -> None:
    hardware = preflight.usable(pretend_hardware("2xH100-80GB", driver=driver), tmp_path)
    assert not hardware.gpus
    [check] = preflight.check_gpus(hardware)
    assert check.level == "warn"
    assert "older than 580" in check.message
    assert "built without CUDA's forward-compatibility libraries" in check.message
    assert "update the host's NVIDIA driver" in check.message


def test_an_older_driver_runs_cuda_13_with_the_forward_compatibility_libraries(
    build_libcuda: Callable[[int, int], Path], tmp_path: Path
) -> None:
    libraries = build_libcuda(0, 13_000)
    hardware = preflight.usable(pretend_hardware("2xH100-80GB", driver="570.86"), libraries)
    assert len(hardware.gpus) == 2
    assert str(libraries) in preflight.check_gpus(hardware)[0].message
    inherited = {"LD_LIBRARY_PATH": "/other"}
    environment = program_environment(
        Paths(tmp_path, tmp_path, tmp_path, tmp_path), inherited, hardware.cuda_libraries
    )
    assert environment["LD_LIBRARY_PATH"] == f"{libraries}:/other"
    assert environment["TRITON_LIBCUDA_PATH"] == str(libraries)


@pytest.mark.parametrize(
    ("status", "version", "reason"),
    [
        (804, 13_000, "for data-center GPUs only"),
        (803, 13_000, "answer 803"),
        (0, 12_080, "version 12080"),  # the loader has found the driver's own
    ],
)
def test_libraries_that_do_not_start_leave_the_gpus_alone(
    build_libcuda: Callable[[int, int], Path], status: int, version: int, reason: str
) -> None:
    old = pretend_hardware("2xH100-80GB", driver="570.86")
    hardware = preflight.usable(old, build_libcuda(status, version))
    assert not hardware.gpus
    assert reason in hardware.note


@pytest.mark.parametrize(
    ("capability", "level"),
    [((7, 0), None), ((7, 5), "warn"), ((8, 0), "ok"), ((12, 0), "ok"), ((12, 1), None)],
)
def test_compute_capability(capability: tuple[int, int], level: str | None) -> None:
    pretended = pretend_hardware("1xH100-80GB")
    gpu = replace(pretended.gpus[0], capability=capability)
    hardware = preflight.usable(replace(pretended, gpus=(gpu,)))
    checks = preflight.check_gpus(hardware)
    assert [check.level for check in checks] == (["ok", level] if level else ["warn"])


def test_no_gpu_is_not_a_failure() -> None:
    (check,) = preflight.check_gpus(pretend_hardware("0"))
    assert str(check) == "ok   gpu: none (pretended: 0): one CPU process"


def test_small_shared_memory_is_warned_about() -> None:
    hardware = replace(pretend_hardware("4xH100-80GB"), shared_memory=64 << 20)
    check = preflight.check_shared_memory(hardware)
    assert check.level == "warn"
    assert check.message == "0.1 GiB; at least 4 GiB wanted, start with --shm-size"
    assert preflight.check_shared_memory(pretend_hardware("4xH100-80GB")).level == "ok"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(2_050_784, "2.0 MiB"), (100 << 20, "100.0 MiB"), (103 << 20, "0.10 GiB"), (0, "0.0 MiB")],
)
def test_small_models_are_weighed_in_smaller_units(size: int, shown: str) -> None:
    checks = preflight.check_model(replace(FACTS, weight_bytes=size))
    assert checks[0].message.endswith(f", {shown}")


def test_model_line_and_gaps() -> None:
    checks = preflight.check_model(replace(FACTS, gaps=("the tokenizer has no chat template",)))
    assert str(checks[0]) == (
        "ok   model: Qwen2ForCausalLM, 1,073,741,824 parameters, BF16, 2.00 GiB"
    )
    assert [str(check) for check in checks[1:]] == [
        "warn model: the tokenizer has no chat template"
    ]


def test_output_folder_is_made_and_left_clean(tmp_path: Path) -> None:
    output = tmp_path / "task" / "repo"
    assert preflight.check_output(output).level == "ok"
    assert output.parent.is_dir()
    assert list(output.parent.iterdir()) == []


def test_output_that_cannot_be_written_reports_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "task").write_text("a file where the folder should be")
    check = preflight.check_output(tmp_path / "task" / "repo")
    assert check.level == "fail"
    assert check.status is ExitStatus.OUTPUT
    assert "mount it read-write" in check.message


@pytest.mark.parametrize(
    ("free", "published", "level", "words"),
    [
        (1, False, "fail", "the model needs 2.00 GiB"),
        (3, False, "warn", "4.00 GiB are needed to replace the published model"),
        (39, False, "warn", "full training may use 40.00 GiB"),
        (41, False, "ok", "41.00 GiB free"),
        (1, True, "warn", "2.00 GiB are needed to replace the published model"),
        (3, True, "warn", "full training may use 38.00 GiB"),
    ],
)
def test_disk_for_two_models_and_checkpoints(
    tmp_path: Path, free: int, published: bool, level: str, words: str
) -> None:
    check = preflight.check_disk(tmp_path, FACTS, free=free * GIB, published=published)
    assert check.level == level
    assert words in check.message
    assert check.status is (ExitStatus.DISK if level == "fail" else ExitStatus.OK)


def test_free_disk_is_looked_up(tmp_path: Path) -> None:
    huge = replace(FACTS, weight_bytes=1 << 60)
    assert preflight.check_disk(tmp_path, huge).level == "fail"


def test_servers_that_answer(serve: Serve) -> None:
    check = check_servers(serve().url, serve().url)
    assert str(check) == "ok   environment servers: 2 of 2 answer"


def test_servers_are_asked_once_at_least(serve: Serve) -> None:
    server = serve(503)
    assert check_servers(server.url, seconds=0).level == "warn"
    assert server.asked == 1


def test_servers_that_are_still_starting_are_waited_for(serve: Serve) -> None:
    server = serve(503, 500, 200)
    assert check_servers(server.url, seconds=30).level == "ok"
    assert server.asked == 3


def test_all_servers_are_waited_for_not_only_the_first_that_answers(serve: Serve) -> None:
    check = check_servers(serve().url, serve(503, 200).url, seconds=30)
    assert str(check) == "ok   environment servers: 2 of 2 answer"


def test_some_silent_servers_are_warned_about(serve: Serve) -> None:
    check = check_servers(serve().url, SILENT)
    assert check.level == "warn"
    assert "1 of 2 answer" in check.message
    assert SILENT in check.message


@pytest.mark.parametrize(
    ("servers", "channel", "level"),
    [((SILENT,), "auto", "warn"), ((), "auto", "fail"), ((SILENT,), "builtin", "ok")],
    ids=["silent", "none named", "none needed"],
)
def test_without_any_server_only_the_builtin_channel_works(
    servers: tuple[str, ...], channel: str, level: str
) -> None:
    check = check_servers(*servers, channel=channel)
    assert check.level == level
    assert check.status is (ExitStatus.ENVIRONMENT if level == "fail" else ExitStatus.OK)
    assert ("the base model is published" in check.message) is (level == "warn")
    if level != "ok":
        assert "environment.channel=builtin" in check.message


def test_waiting_ends_when_asked_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    check = preflight.check_servers((SILENT,), "auto", seconds=3600, stop=stop)
    assert check.level == "warn"


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "nobody.invalid"])
def test_a_host_that_cannot_be_is_a_complaint_like_others(host: str) -> None:
    assert health_error(f"http://{host}:8000/health", 5).startswith(f"http://{host}:8000/health: ")


@pytest.mark.parametrize(("status", "words"), [(200, ""), (404, "HTTP 404"), (302, "HTTP 302")])
def test_complaint_about_a_status(serve: Serve, status: int, words: str) -> None:
    said = health_error(f"{serve(status).url}/health", 5)
    assert words in said
    assert bool(said) == bool(words)


def test_complaint_about_silence_hides_credentials() -> None:
    said = health_error("http://me:hunter2@127.0.0.1:1/health", 5)
    assert "refused" in said
    assert "hunter2" not in said


def test_a_server_that_sends_byte_after_byte_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "GRACE", -59.9)  # the socket itself waits for longer than that
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drips() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                while not over.wait(0.01):
                    connection.sendall(b"x")

        sender = threading.Thread(target=drips)
        sender.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        assert health_errors([url], 60) == {url: f"{url}: no answer in 60 s"}
        over.set()
        sender.join()
