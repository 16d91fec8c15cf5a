"""`python -m miner`: the commands a person types. Each fails with one sentence and a status of 2."""

from __future__ import annotations

import logging
import sys

import typer

from miner.environments import EnvironmentFault
from miner.training.command import train_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, evaluate and look at models that play environment tournaments.",
)
app.command("train")(train_command)


@app.callback()
def _commands() -> None:
    pass


def main() -> None:
    """Run the command line; a failure that a person can mend is one sentence on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except EnvironmentFault as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
