"""`python -m miner new-environment`."""

import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from miner.config.errors import ConfigurationError
from miner.config.run_files import write_atomically

_TEMPLATE = '''r"""A custom environment.

    python -m miner probe environment.channel=own environment.entry={file}
    python -m miner train environment.channel=own environment.entry={file} \\
        model.path=MODEL output.dir=OUT run_dir=runs/{run}
"""

import random

from miner.environments.own import Step, TextEnvironment


class {name}(TextEnvironment):
    """One episode: what `reset` sets, all in self and all from the seed."""

    max_turns = 3  # replies of an episode at most; then score() decides, which is 0 by default
    replies = ("7", "12")  # replies of a policy, for the check before training

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.left, self.right = rng.randint(1, 9), rng.randint(1, 9)
        return f"What is {{self.left}} + {{self.right}}?"

    def step(self, reply: str) -> Step:
        answer = reply.strip()
        if not answer.isdecimal():
            return Step("Answer with a number.", valid=False)
        if int(answer) == self.left + self.right:
            return Step(score=1.0)
        return Step("That is not it. Try again.")
'''


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
    write_atomically(path, _TEMPLATE.format(name=name, file=path, run=name.lower()))
    typer.echo(
        f"wrote {path}; look at what it plays:  python -m miner probe "
        f"environment.channel=own environment.entry={path}"
    )
