"""OpenEnv's own package: where it is."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def python_of_openenv() -> Path:
    """A Python that can import it."""
    return REPOSITORY / ".venv-openenv/bin/python"


def needs_openenv() -> None:
    """Skip the calling module where OpenEnv is not installed."""
    if not python_of_openenv().exists():
        pytest.skip("OpenEnv is not installed: scripts/setup-openenv.sh", allow_module_level=True)
