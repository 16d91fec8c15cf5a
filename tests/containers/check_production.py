"""Looks into the production image: `make image-check`. No GPU is needed, none is used.

It takes minutes to build and nine gigabytes, so `make test` leaves it alone.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.inventory import pretend_hardware
from entrypoint.programs import vllm_command
from entrypoint.topology import BatchShape, plan_topology
from tests.containers.harness import IMAGE, Miner, Place
from tests.entrypoint.test_topology import MODELS
from tests.images.test_image_files import READABLE

REPOSITORY = Path(__file__).resolve().parents[2]
SPLIT = ("4xH100-80GB", "8xH100-80GB", "4xL40S-48GB", "2xA6000-48GB")  # for one model at least
PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve = ServeSubcommand()
serve.subparser_init(parser.add_subparsers(dest="subparser"))
parsed = []
for words in json.load(sys.stdin):
    arguments = parser.parse_args(words)
    serve.validate(arguments)
    parsed.append([arguments.port, arguments.data_parallel_size, arguments.logprobs_mode])
print(json.dumps(parsed))
"""
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


def test_everything_can_be_imported() -> None:
    modules = "vllm, deepspeed, miner.training.run, entrypoint.main"
    inside("python", "-c", f"import {modules}")


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


def test_whatever_is_ours_can_be_read() -> None:
    listed = inside("find", "/app", "-type", "f").split()
    assert {Path(name).suffix for name in listed} <= READABLE
    packages = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = inside("python", "-c", packages).strip()
    assert inside("find", purelib, "/cache", "/app", "-name", "*.pyc") == ""
    assert inside("find", "/cache", "/app/checkpoints", "-type", "f") == ""


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """`vllm serve ...` of every plan that has a server of its own."""
    planned = []
    for inventory in SPLIT:
        hardware = pretend_hardware(inventory)
        batch = BatchShape(servers=len(hardware.gpus))
        plans = [plan_topology(hardware, shape, batch) for shape in MODELS.values()]
        split = [plan for plan in plans if plan.layout == "split"]
        assert split, f"no plan for {inventory} has a server of its own: name another inventory"
        folder = Path("/cache/models/acme--tiny")
        planned += [list(vllm_command(plan, folder)[1:]) for plan in split]
    return planned


def test_vllm_takes_every_planned_command(commands: list[list[str]]) -> None:
    # Without a GPU vLLM parses nothing at all; told that it is on a CPU it parses everything.
    cpu = ("VLLM_TARGET_DEVICE=cpu", "VLLM_SERVER_DEV_MODE=1")
    parsed = json.loads(
        inside("python", "-c", PARSE, given=json.dumps(commands), variables=cpu).splitlines()[-1]
    )
    wanted = [[int(_flag(c, "--port")), int(_flag(c, "--data-parallel-size"))] for c in commands]
    assert parsed == [[*numbers, "processed_logprobs"] for numbers in wanted]


def test_a_short_job_trains_publishes_and_exits_0(place: Place, tmp_path: Path) -> None:
    miner = Miner(place, tmp_path / "checkpoints", settings={"optimizer.max_steps": "1"})
    try:
        assert miner.wait() == ExitStatus.OK, miner.log
        assert miner.verified().loaded
        assert any("step 1/1 reward" in line for line in miner.log)
    finally:
        miner.remove()


def _flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]
