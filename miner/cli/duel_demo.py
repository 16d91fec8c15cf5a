"""`python -m miner duel-demo`: a tiny model learns four of today's games, end to end."""

import asyncio
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.rule import Rule

from miner.cli.demo import ending_children, only_demo, train, watched
from miner.config.recipes import RECIPES
from miner.config.run_files import write_atomically
from miner.reporting.progress import print_line

CACHE = Path(".cache/tiny-duels")
RECIPE = RECIPES / "tiny-duels.toml"
TRAINING_SECONDS = 660.0
SUMMARY_FILE = "summary.json"


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

    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=CACHE) as aside:  # one that is cut off is no base
            build.build_duel_base(Path(aside) / "base", recipe=recipe, progress=progress)
            (Path(aside) / "base").rename(folder)
    return folder


def _summary(model: Path, pairs: int, console: Console) -> dict[str, object]:
    """Scores of the model in a folder by game and opponent, and its share of forfeits."""
    from miner.duel.players.model import load_model_player
    from miner.duel.scoreboard import MEETINGS, score

    async def play() -> dict[str, object]:
        player = load_model_player(model, "trained")
        games: dict[str, dict[str, object]] = {}
        forfeits = played = 0
        try:
            for meeting in MEETINGS:
                result = await score(player, meeting, pairs)
                estimate = result.score
                games.setdefault(meeting.name, {})[meeting.opponent] = {
                    "score": estimate.mean,
                    "low": estimate.low,
                    "high": estimate.high,
                    "games": estimate.n,
                }
                forfeits, played = forfeits + result.forfeits, played + estimate.n
                about = f"{estimate}, {result.forfeits} forfeited"
                print_line(console, f"{meeting.name} against {meeting.opponent}: {about}")
        finally:
            await player.close()
        return {"seconds": 0.0, "forfeits": forfeits / played, "games": games}

    return asyncio.run(play())
