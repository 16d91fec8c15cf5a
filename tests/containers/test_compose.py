"""`docker compose up` as a newcomer types it, and what the other forms would start."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrypoint.exit_status import ExitStatus
from miner.publishing.verify import verify_model

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
GPU_FORM = ("-f", "docker-compose.yml", "-f", "docker-compose.gpu.yml")
Compose = Callable[..., subprocess.CompletedProcess[str]]
QUICK = {"BASE_MODEL_STEPS": "20", "STEPS": "1", "EVALUATION_EPISODES": "10"}


@pytest.fixture
def compose(engine: None, tmp_path: Path) -> Iterator[Compose]:
    """`docker compose ...` in a project of its own, whose traces are removed at the end."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints").chmod(0o777)
    project = f"miner-test-{os.getpid()}"
    called: list[str] = []

    def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        called.extend(words)
        return subprocess.run(
            ["docker", "compose", "--project-name", project, *words],
            cwd=REPOSITORY,
            env={**os.environ, "CHECKPOINTS": str(tmp_path / "checkpoints"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    yield call
    if "up" in called:
        call("down", "--volumes", "--timeout", "1")


@pytest.fixture
def config(compose: Compose) -> Callable[..., dict[str, Any]]:
    """What a form of the command would start, resolved: services, or another section."""

    def resolve(*words: str, section: str = "services", **variables: str) -> dict[str, Any]:
        done = compose(*words, "config", "--format", "json", **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[section]

    return resolve


def test_compose_up_publishes(image: None, compose: Compose, tmp_path: Path) -> None:
    done = compose("up", "--no-build", "--exit-code-from", "miner", **QUICK)
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
    assert "miner: exit 0 (ok): a model of " in done.stdout
    assert "making the tiny base model: 20 steps" in done.stdout
    assert verify_model(tmp_path / "checkpoints/demo/goofspiel", load=True).loaded


def test_the_miners_status_becomes_that_of_compose(image: None, compose: Compose) -> None:
    words = ("up", "--no-build", "--no-deps", "--exit-code-from", "miner", "miner")
    done = compose(*words, HOURS="soon")
    assert done.returncode == ExitStatus.ARGUMENTS, done.stdout + done.stderr


def test_the_miner_has_the_limits_of_the_tournament(config: Callable[..., dict[str, Any]]) -> None:
    miner = config()["miner"]
    assert miner["cap_drop"] == ["ALL"]
    assert miner["security_opt"] == ["no-new-privileges:true"]
    assert {mount["target"]: mount.get("read_only", False) for mount in miner["volumes"]} == {
        "/cache": True,
        "/app/checkpoints": False,
    }
    assert list(miner["networks"]) == ["tournament"]


@pytest.mark.parametrize("form", [(), GPU_FORM, ("--profile", "servers-8"), ("--profile", "real")])
def test_nothing_that_compose_starts_has_a_way_out(
    config: Callable[..., dict[str, Any]], form: tuple[str, ...]
) -> None:
    networks = config(*form, section="networks")
    assert {name: network["internal"] for name, network in networks.items()} == {"tournament": True}
    for name, service in config(*form).items():
        assert list(service["networks"]) == ["tournament"], name
        assert "network_mode" not in service, name
        assert not service.get("ports"), name


@pytest.mark.parametrize(
    ("words", "started"),
    [
        ((), {"environment"}),
        (("--profile", "servers-2"), {"environment", "environment-2"}),
        (("--profile", "servers-4"), {"environment", *(f"environment-{i}" for i in (2, 3, 4))}),
        (("--profile", "servers-8"), {"environment", *(f"environment-{i}" for i in range(2, 9))}),
        (("--profile", "real"), {"environment", "real-environment"}),
    ],
)
def test_profiles_choose_the_environment_servers(
    config: Callable[..., dict[str, Any]], words: tuple[str, ...], started: set[str]
) -> None:
    assert set(config(*words)) == {"miner", "base-model", *started}


def test_the_gpu_form_adds_gpus_and_the_production_image(
    config: Callable[..., dict[str, Any]],
) -> None:
    services = config(*GPU_FORM)
    miner = services["miner"]
    assert miner["image"] == "goofspiel-miner:production"
    assert miner["build"]["dockerfile"] == "Dockerfile"
    (device,) = miner["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert miner["ulimits"]["memlock"] == -1
    assert services["environment"]["image"] == "goofspiel-miner:cpu"
    assert miner["cap_drop"] == ["ALL"]


@pytest.mark.parametrize(("variables", "gigabytes"), [({}, 8), ({"SHM_SIZE": "16gb"}, 16)])
def test_shared_memory_is_the_tournaments_for_the_number_of_gpus(
    config: Callable[..., dict[str, Any]], variables: dict[str, str], gigabytes: int
) -> None:
    assert int(config(*GPU_FORM, **variables)["miner"]["shm_size"]) == gigabytes << 30
