"""`python -m miner duel-demo`: a tiny model learns four of today's games, end to end."""

import asyncio
import json
import math
import os
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule

from miner.cli.demo import ending_children, only_demo, train, watched
from miner.config.out_folder import made_once
from miner.config.recipes import RECIPES
from miner.config.run_files import write_atomically
from miner.reporting.progress import print_line

if TYPE_CHECKING:
    from miner.duel.league import Row
    from miner.duel.players.base import Player

CACHE = Path(".cache/tiny-duels")
RECIPE = RECIPES / "tiny-duels.toml"
TRAINING_SECONDS = 660.0
SUMMARY_FILE = "summary.json"
EVALUATION_SEED = 42
MATCH_PAIRS = 5
"""The tournament's clock allows more."""
ROWS = (
    ("leduc_poker", None, "random"),
    ("leduc_poker", None, "cfr"),
    ("leduc_poker", None, "rival"),
    ("goofspiel", 5, "random"),
    ("goofspiel", 5, "bid"),
    ("goofspiel", 8, "random"),
    ("goofspiel", 8, "bid"),
    ("liars_dice", None, "random"),
    ("liars_dice", None, "rival"),
    ("clobber", "4x5", "random"),
)
"""Of the summary: game, cards or board (None: it has one size), opponent."""


def duel_demo_command(
    seed: Annotated[int, typer.Option(min=0, help="Of tasks and sampling.")] = 0,
    out: Annotated[Path, typer.Option(help="Runs and published models go here.")] = Path("runs"),
    seconds: Annotated[
        float, typer.Option(min=1, help="Training time, evaluations included.")
    ] = TRAINING_SECONDS,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of games a row of the summary.")] = 200,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further settings.")
    ] = None,
) -> None:
    """Watch a tiny model learn Goofspiel, Leduc poker, Liar's dice and Clobber as duels.

    Makes a base that knows the form of calls only, trains it on teachers' moves and then on its own
    games, plays it against others, and writes report.html and summary.json.
    """
    console, began = Console(), time.monotonic()
    name = f"demo-duel-seed-{seed}"
    run_dir, published = out / name, out / "checkpoints" / "demo" / name
    with only_demo(run_dir):
        console.print(Rule("1  a base model", align="left"))
        base = _base(console)
        console.print(Rule("2  train, publish", align="left"))
        overrides = (
            *(f"model.path={base}", f"output.dir={published}", f"run_dir={run_dir}"),
            *(f"seed={seed}", f"deadline.seconds={seconds}", *(setting or ())),
        )
        with ending_children(), watched(run_dir):
            train(RECIPE, overrides, os.environ)
        console.print(Rule(f"3  {pairs} pairs of games a row", align="left"))
        summary = _summary(published, pairs, console)
        summary["seconds"] = round(time.monotonic() - began, 1)
        write_atomically(run_dir / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    print_line(console, f"summary    {run_dir / SUMMARY_FILE}")


def _base(console: Console) -> Path:
    from miner.duel.tiny_base import build  # imports torch: seconds

    recipe = build.FOUR_GAMES
    folder = CACHE / build.content_key(recipe)

    def progress(step: int, loss: float) -> None:
        if step % 50 == 0:
            console.print(f"step {step} of {recipe.steps}: loss {loss:.2f}")

    return made_once(
        folder, lambda out: build.build_duel_base(out, recipe=recipe, progress=progress)
    )


def _summary(model: Path, pairs: int, console: Console) -> dict[str, object]:
    """Scores of the model in a folder by game and opponent, and its share of forfeits."""
    from miner.duel.players.model import load_model_player

    async def play() -> dict[str, object]:
        player = load_model_player(model, "trained")
        games: dict[str, dict[str, object]] = {}
        forfeits = played = 0
        try:
            for game, size, opponent in ROWS:
                row = await score(player, game, size, opponent, pairs)
                estimate, forfeited = row.score, sum(row.forfeits.values())
                assert estimate is not None
                name = f"{game}-{size}" if size else game
                games.setdefault(name, {})[opponent] = {
                    "score": estimate.mean,
                    "low": estimate.low,
                    "high": estimate.high,
                    "games": estimate.n,
                }
                forfeits, played = forfeits + forfeited, played + estimate.n
                about = f"{estimate}, {forfeited} forfeited"
                print_line(console, f"{name} against {opponent}: {about}")
        finally:
            await player.close()
        return {"seconds": 0.0, "forfeits": forfeits / played, "games": games}

    return asyncio.run(play())


async def score(
    player: "Player", game: str, size: int | str | None, opponent: str, pairs: int
) -> "Row":
    """Both seats of each of the tournament's first `pairs` seeds, in matches of ten games at once.

    Args:
        size: of Goofspiel's deck or Clobber's board; None: all.

    The interval takes pairs for independent, although those of a match share notes.

    Raises: `InfrastructureError` for a player that fails for good.
    """
    from miner.duel.channel.tasks import fitting_seeds
    from miner.duel.league import LeagueResult
    from miner.duel.match import Limits, play_match
    from miner.duel.play import Rules
    from miner.duel.players.catalog import make_player
    from miner.duel.table import game_seeds
    from miner.duel.tournament_files import wording_of
    from miner.environments.errors import InfrastructureError
    from miner.games import game_named

    other = make_player(opponent, [game], seat=1)
    rules = Rules(EVALUATION_SEED, wording_of(None), turn_limit_s=None)
    sizes = rules.sizes if size is None else (size,)
    seeds = list(islice(fitting_seeds(game, game_seeds(EVALUATION_SEED), sizes), pairs))
    limits = Limits(seconds=math.inf)
    matches = await asyncio.gather(
        *(
            play_match(
                *(game_named(game), player, other, rules, limits),
                seeds=seeds[first : first + MATCH_PAIRS],
            )
            for first in range(0, pairs, MATCH_PAIRS)
        )
    )
    for match in matches:
        if match.failure is not None:
            raise InfrastructureError(f"a match of {game} broke off: {match.failure}")
    return LeagueResult([player.name], [game], matches).row(player.name, game)
