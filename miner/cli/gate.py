"""`python -m miner gate`: decide whether a model may replace the one that training began with."""

from typing import Annotated

import typer
from rich.console import Console

from miner.cli.duel import Games, Prompts, Seed
from miner.cli.stoppable import run_stoppable

NOT_PASSED = 1
"""Status where the start stays."""


def gate_command(
    candidate: Annotated[str, typer.Argument(help="The player that would replace the start.")],
    start: Annotated[str, typer.Argument(help="The player that is published now.")],
    games: Games = None,
    pairs: Annotated[int, typer.Option(min=1, help="Most pairs of each game.")] = 400,
    number: Annotated[int, typer.Option(min=1, help="Candidates so far, this one included.")] = 1,
    seed: Seed = 42,
    prompts: Prompts = None,
) -> None:
    """Play seat-swapped pairs until every game shows the candidate no worse than the start.

    The status is 0 if it has passed and 1 if not: what is undecided keeps the start. Each game has
    to show a score above 0.45, and all together forfeits that exceed the start's by less than 2% of
    the games (miner/publishing/gate.py).
    Players are named as with `duel`.

    Example:
      python -m miner gate trained=OUT base=MODEL --games leduc_poker
    """
    from miner.duel.gating import play_gate
    from miner.duel.players.catalog import chosen_games

    gate = run_stoppable(
        play_gate(candidate, start, chosen_games(games), pairs, number, seed, prompts)
    )
    console = Console()
    if gate.passed:
        console.print("passed: no game and no forfeits speak against the candidate")
        return
    console.print(f"not passed: undecided in {', '.join(gate.undecided)}; the start stays")
    raise typer.Exit(NOT_PASSED)
