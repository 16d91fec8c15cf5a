"""Checks of the output path: publishing replaces the folder there, so it must hold nothing else.

The mark of a published folder is its `PUBLICATION_FILE`: a small JSON file that no loader of models
reads, and that moves with the folder.
"""

from pathlib import Path

from miner.config.errors import ConfigurationError
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import read_json

PUBLICATION_FILE = "miner_publication.json"

WAY_OUT = "name a folder that does not exist yet"


def check_apart(output: Path, model: Path, run_dir: Path | None = None) -> None:
    """Raise `ConfigurationError` if replacing `output` would take a folder in use away."""
    target = output.resolve()
    in_use = {f"the base model's folder {model}": model.resolve(), "the working folder": Path.cwd()}
    if run_dir is not None:
        in_use[f"run_dir {run_dir}"] = run_dir.resolve()
    for name, folder in in_use.items():
        if folder == target:
            raise ConfigurationError(f"output.dir {output} is {name}: {WAY_OUT}")
        if folder.is_relative_to(target):
            raise ConfigurationError(f"output.dir {output} contains {name}: {WAY_OUT}")
    if target.is_relative_to(model.resolve()):
        raise ConfigurationError(f"output.dir {output} is inside model.path {model}: {WAY_OUT}")


def check_replaceable(output: Path) -> None:
    """Raise `ConfigurationError` unless `output` is new, empty, or was published by the miner."""
    if not output.exists() or is_published(output):
        return
    if not output.is_dir():
        raise ConfigurationError(f"output.dir {output} is a file: {WAY_OUT}")
    first = min((child.name for child in output.iterdir()), default=None)
    if first is not None:
        raise ConfigurationError(
            f"output.dir {output} holds files that the miner has not published ({first}): "
            f"{WAY_OUT}, or move them away"
        )


def stagings(output: Path) -> list[Path]:
    """Folders beside `output` in which a publication is, or was, made."""
    prefix = staging_prefix(output)
    if not output.parent.is_dir():
        return []
    return [child for child in output.parent.iterdir() if child.name.startswith(prefix)]


def staging_prefix(output: Path) -> str:
    """The beginning of their names."""
    return f".{output.name}.staging-"


def is_published(folder: Path) -> bool:
    """Return whether the miner has published this folder."""
    return published_step(folder) is not None


def published_step(folder: Path) -> int | None:
    """The step of the model that the miner has published in this folder; None: it has not."""
    try:
        step: int | None = read_json(folder / PUBLICATION_FILE).get("step")
    except UnverifiedModelError:
        return None
    return step
