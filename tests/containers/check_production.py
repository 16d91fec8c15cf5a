"""Looks into the production image: `make image-check`. No GPU is needed, none is used.

It takes minutes to build and nine gigabytes, so `make test` leaves it alone.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from entrypoint.exit_status import ExitStatus
from tests.containers.harness import IMAGE, Miner, Place
from tests.entrypoint.plans import as_parsed, planned_servers
from tests.images.test_image_files import READABLE, TOURNAMENTS

pytestmark = pytest.mark.usefixtures("engine")

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in json.load(sys.stdin)}))
"""


def inside(*command: str, given: str = "", variables: tuple[str, ...] = ()) -> str:
    """What a command prints that runs in the image, under the tournament's limits."""
    limits = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
    settings = [word for variable in variables for word in ("--env", variable)]
    program, *arguments = command
    container = ["docker", "run", "--rm", "-i", *limits, *settings, "--entrypoint", program, IMAGE]
    done = subprocess.run(
        [*container, *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_direct_pin_is_installed() -> None:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    pins = dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)$", "\n".join(lines), re.MULTILINE))
    installed = json.loads(inside("python", "-c", VERSIONS, given=json.dumps(list(pins))))
    assert {name: version.removesuffix(".0") for name, version in installed.items()} == {
        name: version.removesuffix(".0") for name, version in pins.items()
    }


def test_every_call_to_vllm_and_trl_fits() -> None:
    table = (REPOSITORY / "tests/vllm_surface.py").read_text()
    said = inside("python", "-", given=table).splitlines()[-1]
    fitting, all_of_them = re.search(r"(\d+) of (\d+) calls, fields and routes fit", said).groups()
    assert fitting == all_of_them


def test_the_compilers_fit_each_other() -> None:
    assert "release 13.0" in inside("nvcc", "--version")
    program = "echo '#include <Python.h>\\n#include <cuda_runtime.h>\\nint main() {}'"
    flags = "$(python -c 'import sysconfig; print(sysconfig.get_path(\"include\"))')"
    build = f"g++ -x c++ - -o /tmp/a -I{flags} -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart"
    inside("sh", "-c", f"{program} | {build} && /tmp/a")


def test_all_files_of_the_miner_can_be_read() -> None:
    for name in inside("find", "/app", "-type", "f").split():
        allowed = TOURNAMENTS if name.startswith("/app/tournament/") else READABLE
        assert Path(name).suffix in allowed, name
    packages = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = inside("python", "-c", packages).strip()
    assert inside("find", purelib, "/cache", "/app", "-name", "*.pyc") == ""
    assert inside("find", "/cache", "/app/checkpoints", "-type", "f") == ""


def test_vllm_takes_every_planned_command() -> None:
    commands = planned_servers()
    program = (REPOSITORY / "tests/vllm_arguments.py").read_text()
    cpu = ("VLLM_TARGET_DEVICE=cpu", "VLLM_SERVER_DEV_MODE=1")
    printed = inside("python", "-c", program, given=json.dumps(commands), variables=cpu)
    assert json.loads(printed.splitlines()[-1]) == as_parsed(commands)


def test_the_output_heads_kernels_compute_what_torch_does() -> None:
    program = (REPOSITORY / "tests/head_kernels.py").read_text()
    inside("python", "-c", program, variables=("TRITON_INTERPRET=1",))


def test_a_short_job_trains_publishes_and_exits_0(place: Place, tmp_path: Path) -> None:
    miner = Miner(place, tmp_path / "checkpoints", settings={"optimizer.max_steps": "1"})
    try:
        assert miner.wait() == ExitStatus.OK, miner.log
        assert miner.verified().loaded
        assert any("step 1/1 reward" in line for line in miner.log)
    finally:
        miner.remove()
