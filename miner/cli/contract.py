"""`python -m miner contract`: compare the tournament with what this miner was built for."""

from pathlib import Path
from typing import Annotated

import typer


def contract_command(
    clone: Annotated[Path, typer.Option("--from", help="A clone of the tournament's repository.")],
) -> None:
    """Compare the tournament's repository with what this miner is built for.

    The clone's files are parsed and never run. Each difference is a line: the value here and there,
    the file, and what depends on it. Ends with 1 if there is any.

    Example:
      python -m miner contract --from ../G.O.D
    """
    from miner.config.watched import FACTS, LICENCES, differences

    found = differences(clone)
    for difference in found:
        print(f"differs: {difference}")
    missing = [name for name in LICENCES if not Path(name).is_file()]
    texts = f"; not compared, as they are missing here: {', '.join(missing)}" if missing else ""
    print(f"{len(found)} differences ({len(FACTS)} facts compared with {clone}{texts})")
    if found:
        raise typer.Exit(1)
