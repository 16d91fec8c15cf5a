"""The files that images are made of; no engine is needed to read them."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from entrypoint.environment import program_environment, writable_folders
from entrypoint.paths import Paths
from miner.duel.tournament_files import FILES
from miner.rollout.base_templates import FILES as TEMPLATE_FILES

REPOSITORY = Path(__file__).resolve().parents[2]
READABLE = {".py", ".md", ".j2", ".toml", ""}  # suffixes of the image's own files
TOURNAMENTS = READABLE | {".yml", ".jinja"}  # and of the copy of the tournament's
PRODUCTION = (REPOSITORY / "Dockerfile").read_text()
SMALL = (REPOSITORY / "Dockerfile.cpu").read_text()


def packages(file: str) -> dict[str, str]:
    """Names and versions that a requirements file pins."""
    text = (REPOSITORY / file).read_text()
    found = re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;\\]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("folder", ["ops/docker", "dockerfiles"])
def test_validators_build_the_same_file(folder: str) -> None:
    submitted = REPOSITORY / folder / "standalone-text-trainer.dockerfile"
    assert submitted.read_bytes() == (REPOSITORY / "Dockerfile").read_bytes()


def test_the_classic_builder_can_build_it() -> None:
    assert not re.search(r"--mount|--network|--security|--chmod|--link|--parents|<<", PRODUCTION)
    assert not re.search(r"^#\s*(syntax|escape|check)\s*=", PRODUCTION, re.MULTILINE)
    froms = re.findall(r"^FROM (.*)$", PRODUCTION, re.MULTILINE)
    assert froms == ["${BASE_IMAGE}"]
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm\n" in PRODUCTION


@pytest.mark.parametrize("text", [PRODUCTION, SMALL], ids=["production", "cpu"])
def test_the_orchestrator_is_what_the_image_runs(text: str) -> None:
    assert text.rstrip().splitlines()[-1] == 'ENTRYPOINT ["python", "-m", "entrypoint"]'
    copied = re.findall(r"^COPY (\w+) (\w+)$", text, re.MULTILINE)
    assert {source for source, _ in copied} == {"entrypoint", "miner", "mock_env_server", "recipes"}
    assert all(source == there for source, there in copied)


def test_every_copied_file_has_a_suffix_that_can_be_read() -> None:
    folders = re.findall(r"^COPY (\w+) \w+$", PRODUCTION, re.MULTILINE)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"git does not list the files: {listed.stderr.strip()}")
    others = [name for name in listed.stdout.split() if Path(name).suffix not in READABLE]
    assert len(listed.stdout.split()) > 200
    assert others == []


def test_every_file_that_is_copied_from_the_tournament_has_a_suffix_that_can_be_read() -> None:
    copied = [*(names[0] for names in FILES.values()), *TEMPLATE_FILES]
    assert {Path(name).suffix for name in copied} <= TOURNAMENTS


def test_the_builds_smoke_test_names_what_exists() -> None:
    [line] = re.findall(r'python -c "import (miner\..*)"', PRODUCTION)
    for module in line.split(", "):
        assert importlib.util.find_spec(module) is not None, module
    [others] = re.findall(r'python -c "import (torch, .*)"', PRODUCTION)
    pinned = packages("requirements.txt")
    for module in others.split(", "):
        assert module.replace("_", "-") in pinned, f"{module} is not among the direct pins"


@pytest.mark.parametrize("text", [PRODUCTION, SMALL], ids=["production", "cpu"])
def test_a_copy_of_the_tournaments_files_is_where_the_trainer_looks(text: str) -> None:
    """The pattern lets the line match nothing but README.md where there is no copy."""
    [sources] = re.findall(r"^COPY (.*) tournament/$", text, re.MULTILINE)
    assert sources.split() == ["README.md", "tournamen[t]"]
    assert re.search(r"^WORKDIR /app$", text, re.MULTILINE)
    assert "!tournament" in (REPOSITORY / ".dockerignore").read_text().split("\n")


def test_every_cache_of_the_image_can_be_written() -> None:
    settings = dict(re.findall(r"^(?:ENV|   ) ?([A-Z_]+)=(\S+)", PRODUCTION, re.MULTILINE))
    roots = Path("/cache"), Path("/app/checkpoints")
    run = roots[1] / "task/.run-repo"
    paths = Paths(roots[0], roots[0] / "models/m", roots[1] / "task/repo", run)
    environment = program_environment(paths, {})
    folders = {str(folder) for folder in writable_folders(environment, paths)}
    moved = {name for name, value in environment.items() if value in folders}
    caches = {name for name in moved if not name.startswith("WANDB_")}
    assert {name: settings[name].startswith("/tmp/cache/") for name in caches} == dict.fromkeys(
        caches, True
    )


def test_the_lock_is_the_requirements_resolved_with_hashes() -> None:
    locked = packages("requirements.lock")
    assert len(locked) > 200
    for name, version in packages("requirements.txt").items():
        assert locked[name].removesuffix(".0") == version.removesuffix(".0"), name
    entries = re.split(r"^(?=[a-z0-9])", (REPOSITORY / "requirements.lock").read_text(), flags=re.M)
    assert [entry for entry in entries[1:] if "--hash=sha256:" not in entry] == []


def test_the_small_lock_holds_every_direct_pin() -> None:
    locked = packages("requirements-cpu.lock")
    for file in ("requirements-cpu.txt", "requirements-dev.txt"):
        for name, version in packages(file).items():
            assert name == "torch" or locked[name] == version, name


def test_models_data_and_compiled_files_stay_out_of_the_context() -> None:
    rules = (REPOSITORY / ".dockerignore").read_text().split("\n")
    assert rules[1] == "*"
    assert {"**/__pycache__", "**/*.pyc"} <= set(rules[rules.index("!mock_env_server") :])
    assert {rule for rule in rules if rule.startswith("!")} == {
        *("!requirements*.lock", "!requirements*.txt", "!README.md", "!LICENSE", "!NOTICE"),
        *("!tournament", "!entrypoint", "!miner", "!mock_env_server", "!recipes"),
        "!.cache/wheels/*.whl",
    }
