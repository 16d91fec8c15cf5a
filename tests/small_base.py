"""One base model for tests in which it need know little more than the form of a reply."""

import shutil
from pathlib import Path

from filelock import FileLock

from miner.tiny_model.build import Recipe, cached_tiny_model
from miner.tiny_model.warm_start import WarmStartRecipe
from tests.conftest import REPOSITORY


def small_base(folder: Path) -> Path:
    """A copy at `folder`; the suite makes it once."""
    cache = REPOSITORY / ".cache/tiny-model"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "small.lock"):
        made = cached_tiny_model(cache, recipe=Recipe(warm_start=WarmStartRecipe(steps=40)))
    shutil.copytree(made, folder)
    folder.chmod(0o755)
    return folder
