"""`python -m miner duel` and `league`: matches by the tournament's rules, between any players."""

from pathlib import Path
from typing import Annotated

import typer

from miner.cli.stoppable import run_stoppable
from miner.config.contract import MATCH_SECONDS
from miner.config.out_folder import check_out
from miner.config.statuses import TrainerStatus

Games = Annotated[
    str | None, typer.Option(help="Games with commas between them. Default: all six.")
]
Minutes = Annotated[
    float, typer.Option(min=0.0, help="Clock of each match; the tournament's is 15 per game.")
]
Pairs = Annotated[
    int,
    typer.Option(min=0, help="Most pairs of games a match; 0: by the clock alone, as graded."),
]
Seed = Annotated[int, typer.Option(help="Evaluation seed: draws the games.")]
Prompts = Annotated[
    Path | None,
    typer.Option(help="Copy of the tournament's files. Default: tournament, if it is there."),
]
Replays = Annotated[int, typer.Option(min=0, help="Games of each match to look at.")]
Sizes = Annotated[
    str | None,
    typer.Option(
        help="Decks of Goofspiel (5, 8, 10, 13) and boards of Clobber (4x5, 5x5, 5x6) with commas "
        "between them."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for JSON, picture and page.")]
Player = Annotated[str, typer.Argument(help="A player; see below.", show_default=False)]


def duel_command(
    first: Player,
    second: Player,
    games: Games = None,
    minutes: Minutes = MATCH_SECONDS / 60,
    pairs: Pairs = 20,
    seed: Seed = 42,
    prompts: Prompts = None,
    replays: Replays = 2,
    out: Out = Path("runs/duel"),
    sizes: Sizes = None,
) -> None:
    """Let two players meet in the tournament's games: who won what, with 95% intervals.

    A player is: random, bid (Goofspiel: bids the prize's value), above (what beats that), mcts:50
    (a search with so many simulations), cfr (Leduc's equilibrium), strong (the best of these in
    each game), teacher, rival, a function of yours (FILE.py:NAME or package.module:NAME), a model
    folder, or an endpoint such as http://127.0.0.1:8000/v1#MODEL (OPENAI_API_KEY is sent to the
    server of OPENAI_BASE_URL alone). NAME= before it names it.

    Examples:
      python -m miner duel mcts:50 random
      python -m miner duel trained=OUT base=MODEL --games goofspiel,othello
    """
    league_command(
        *([first, second], games, minutes, pairs, seed, None, prompts, replays, out, sizes)
    )


def league_command(
    players: Annotated[list[str], typer.Argument(help="Two players or more.", show_default=False)],
    games: Games = None,
    minutes: Minutes = MATCH_SECONDS / 60,
    pairs: Pairs = 20,
    seed: Seed = 42,
    boss: Annotated[
        str | None, typer.Option(help="Name of the player that has to be beaten.")
    ] = None,
    prompts: Prompts = None,
    replays: Replays = 1,
    out: Out = Path("runs/league"),
    sizes: Sizes = None,
) -> None:
    """Let a group of players meet, each against all others, and print who would advance.

    Players are named as with `duel`.

    Examples:
      python -m miner league random mcts:10 mcts:50 strong --pairs 5
      python -m miner league a=runs/a/output b=runs/b/output base=MODEL --boss base
    """
    from miner.duel.match import Limits
    from miner.duel.session import run_session

    check_out(out)
    limits = Limits(seconds=minutes * 60, pairs=pairs or None)
    result = run_stoppable(
        run_session(
            *(players, games, limits, seed),
            prompts=prompts,
            replays=replays,
            out=out,
            boss=boss,
            sizes=sizes,
        )
    )
    if result.interrupted:
        raise typer.Exit(TrainerStatus.INTERRUPTED)
