"""`python -m miner demo`: the whole job on a laptop, end to end, as the container runs it.

A tiny base model is made on the spot, the mock environment server runs as a process of its own,
and training is the same command, settings and code as in production, in a process of its own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.rule import Rule

from miner.config.recipes import RECIPES
from miner.environments import InfrastructureError
from miner.evaluation.grader import GRADER_BASE_SEED
from miner.evaluation.references import MATCH
from mock_env_server.running import running_server

TASK_ID = "demo"
CACHE = Path(".cache/tiny-model")
EPISODES = 250
SERVERS = 3
"""A server plays 48 graded games at once, an evaluation has 150; validators start one per GPU."""


class Sizes(StrEnum):
    """Deck sizes the demo learns."""

    EIGHT = "8"
    ALL = "all"


class ServerMode(StrEnum):
    """Modes of the mock environment server."""

    FAITHFUL = "faithful"
    CORRECT = "correct"


DECK_SIZES = {Sizes.EIGHT: (8,), Sizes.ALL: (8, 10, 12, 14, 16)}
RECIPE = {Sizes.EIGHT: "tiny-8-cards", Sizes.ALL: "tiny-all-sizes"}
TRAINING_SECONDS = {Sizes.EIGHT: 225.0, Sizes.ALL: 690.0}
"""A little under four and twelve minutes: the last evaluation and publication come on top."""

BASE_MINUTES = {Sizes.EIGHT: (1.0, 2.5), Sizes.ALL: (2.0, 5.0)}
"""Of making the base model on two cores, fast and slow."""
REST_MINUTES = (1, 2)
"""Of starting and probing the servers before training, and of the grader's games after it."""


def demo_command(
    sizes: Annotated[Sizes, typer.Option(help="Cards per hand: 8 only, or all five sizes.")] = (
        Sizes.EIGHT
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of tasks and sampling.")] = 0,
    out: Annotated[Path, typer.Option(help="Runs and published models go here.")] = Path("runs"),
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Training time; default: what the docs measured.")
    ] = None,
    mode: Annotated[
        ServerMode, typer.Option(help="faithful: /step plays wrong cards, as the real one does.")
    ] = ServerMode.FAITHFUL,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further settings.")
    ] = None,
) -> None:
    """Watch a tiny language model learn Goofspiel through the code that runs on GPUs.

    Makes a base model, starts the mock environment server, probes it, trains by GRPO, publishes
    the best model, evaluates base and trained model on the grader's own 250 games, and writes
    report.html with the learning curve and a replayed game.
    """
    console = Console()
    started = time.monotonic()
    name = f"demo-{sizes}-cards-seed-{seed}"
    run_dir, published = out / name, out / "checkpoints" / TASK_ID / name
    _fresh(run_dir)

    seconds = seconds or TRAINING_SECONDS[sizes]
    console.print(Rule("1  a tiny base model, made here", align="left"))
    base = _base_model(sizes, seconds, console)
    console.print(Rule(f"2  {SERVERS} mock environment servers", align="left"))
    with ExitStack() as stack:
        urls = [stack.enter_context(running_server(mode.value)).base_url for _ in range(SERVERS)]
        console.print(f"{', '.join(urls)}; their /step is {mode.value}", highlight=False)
        console.print(Rule("3  probe, train, publish", align="left"))
        overrides = [
            f"model.path={base}",
            f"output.dir={published}",
            f"run_dir={run_dir}",
            f"seed={seed}",
            f"deadline.seconds={seconds}",
            *(setting or ()),
        ]
        environ = os.environ | {"ENVIRONMENT_SERVER_URLS": ",".join(urls)}
        recipe = str(RECIPES / f"{RECIPE[sizes]}.toml")
        command = [sys.executable, "-m", "miner", "train", "--config", recipe, *overrides]
        if status := subprocess.run(command, env=environ, check=False).returncode:
            raise typer.Exit(status)
        console.print(Rule(f"4  the grader's {EPISODES} games", align="left"))
        _evaluate(base, published, run_dir, DECK_SIZES[sizes], urls, console)
    console.print(Rule("5  what to look at", align="left"))
    _report(run_dir, console)
    console.print(f"model      {published}", highlight=False, soft_wrap=True)
    console.print(f"all of it took {(time.monotonic() - started) / 60:.1f} minutes")


def _fresh(run_dir: Path) -> None:
    """Move an earlier run of the same name aside: a demo shows learning from the start."""
    if run_dir.exists():
        aside = run_dir.with_name(f"{run_dir.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        run_dir.rename(aside)


def announce(console: Console, sizes: Sizes, seconds: float, *, base_is_there: bool) -> None:
    """Say how long it takes, before a person waits for it.

    Args:
        seconds: of training.
        base_is_there: an earlier demo has made the base model.
    """
    least, most = (0.0, 0.0) if base_is_there else BASE_MINUTES[sizes]
    base = "is there already" if base_is_there else f"{least:g} to {most:g} (kept for next time)"
    training = seconds / 60
    first, last = training + least + REST_MINUTES[0], training + most + REST_MINUTES[1]
    console.print(
        f"expect {math.floor(first)} to {math.floor(last + 0.5)} minutes: the base model {base}, "
        f"training {training:.1f}, all else {REST_MINUTES[0]} to {REST_MINUTES[1]}",
        highlight=False,
        soft_wrap=True,
    )


def _base_model(sizes: Sizes, seconds: float, console: Console) -> Path:
    from transformers.utils.logging import disable_progress_bar  # imports torch: seconds

    from miner.tiny_model.build import cached_tiny_model, content_key, is_made, recipe_for

    disable_progress_bar()
    recipe = recipe_for(DECK_SIZES[sizes])
    there = is_made(CACHE / content_key(recipe, 0), recipe=recipe)
    announce(console, sizes, seconds, base_is_there=there)
    return cached_tiny_model(CACHE, recipe=recipe, progress=WarmStartProgress(console))


class WarmStartProgress:
    """Progress of the base model: a bar in a terminal; elsewhere a line now and then."""

    EVERY_SECONDS = 10.0

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._began = self._said = clock()
        self._bar = Progress(console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("warm start", total=None) if self._bar else None

    def __call__(self, step: int, total: int, loss: float) -> None:
        """Show that `step` of now planned `total` is done."""
        if self._bar is not None and self._task is not None:
            self._bar.start()
            self._bar.update(self._task, completed=step, total=total)
            if step == total:
                self._bar.stop()
            return
        now = self._clock()
        if now - self._said < self.EVERY_SECONDS and step < total:
            return
        self._said = now
        left = timedelta(seconds=round((now - self._began) / step * (total - step)))
        line = f"warm start {step}/{total} loss {loss:.2f} eta {left}"
        self._console.print(line, highlight=False, soft_wrap=True)
        self._console.file.flush()


def _evaluate(
    base: Path,
    published: Path,
    run_dir: Path,
    sizes: tuple[int, ...],
    urls: Sequence[str],
    console: Console,
) -> None:
    """Everyone on the same games; results go into the run's folder."""
    from miner.cli.evaluation_session import EvaluationRequest, run_evaluation

    quiet = Console(quiet=True)
    players = [
        ("random", None, "random", 0.0),
        ("base", base, None, 0.0),
        ("base, sampled", base, None, 1.0),
        ("trained", published, None, 0.0),
        ("trained, sampled", published, None, 1.0),
        (MATCH.name, None, "match", 0.0),
    ]
    for name, model, baseline, temperature in players:
        console.print(f"{name} ...", highlight=False)
        request = EvaluationRequest(
            model=model,
            baseline=baseline,
            llm_url=None,
            llm_model=None,
            name=name,
            episodes=EPISODES,
            base_seed=GRADER_BASE_SEED,
            environment="goofspiel",
            sizes=sizes,
            servers=tuple(urls),
            channel="builtin",  # the server's own prompts, learned from it, without HTTP
            temperature=temperature,
            concurrency=EPISODES,
            timeout_s=None,
            max_reply_tokens=16,
            replays=2 if name == "trained" else 0,
            out=run_dir,
        )
        if not run_evaluation(request, quiet):
            raise InfrastructureError(f"{name} could not be evaluated: run the demo again")


def _report(run_dir: Path, console: Console) -> None:
    from miner.reporting.page import table_evaluations, write_report
    from miner.reporting.run_folder import RunFolder
    from miner.reporting.tables import score_table

    page = write_report(run_dir)
    console.print(score_table(table_evaluations(RunFolder(run_dir).read()), console.width))
    console.print(f"report     {page}", highlight=False, soft_wrap=True)
    console.print(f"curve      {run_dir / 'learning_curve.png'}", highlight=False, soft_wrap=True)
