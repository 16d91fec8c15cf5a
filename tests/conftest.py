"""One thread for torch: tests run on small machines beside others, and tiny models gain nothing."""

import pytest
import torch

pytest_plugins = ["tests.skips", "pytester"]
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked as long come first, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
