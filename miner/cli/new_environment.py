"""`python -m miner new-environment`."""

import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from miner.config.errors import ConfigurationError
from miner.config.run_files import write_atomically
from miner.environments.own.template import environment_file


def new_environment_command(
    name: Annotated[str, typer.Argument(help="Of the class, such as Guess.")],
    folder: Annotated[Path, typer.Option("--in", help="Where to write it.")] = Path(),
) -> None:
    """Write an environment of your own to begin with: a class with reset and step.

    It can be trained on as it is; change it, and look with `python -m miner probe`.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigurationError(f"{name!r} is not a name of a class: write it like Guess")
    if name.lower() in sys.stdlib_module_names or name in ("Step", "TextEnvironment"):
        raise ConfigurationError(
            f"{name!r} would hide what has this name already: choose another name"
        )
    path = folder / f"{name.lower()}.py"
    if path.exists():
        raise ConfigurationError(f"{path} is there already: choose another name, or move it")
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}: make it first")
    write_atomically(path, environment_file(name, str(path)))
    typer.echo(
        f"wrote {path}; look at what it plays:  python -m miner probe "
        f"environment.channel=own environment.entry={path}"
    )
