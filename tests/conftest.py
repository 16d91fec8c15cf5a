"""For all tests: one thread for torch, its builds in the repository, long files first."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.skips", "pytester"]

torch.set_num_threads(1)  # tests run on small machines beside others, and tiny models gain nothing
# Where setup has built DeepSpeed's communication. Elsewhere a build that was killed may have left
# a lock, or other programs build something else.
os.environ["TORCH_EXTENSIONS_DIR"] = str(REPOSITORY / ".cache/torch_extensions")
hypothesis.settings.register_profile("busy", deadline=None)  # an example may take long there
hypothesis.settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked as long come first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
