"""`python -m miner demo`: the whole job on a laptop, end to end, as the container runs it.

A base model is made on the spot, the mock environment server runs as a separate process,
and training is the same command, settings and code as in production, with a process per core.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.rule import Rule

from miner.cli.demo_shows import SHOWS, DemoModel, Show, Sizes
from miner.cli.report import report_command
from miner.config.contract import SERVERS_VARIABLE
from miner.config.control_groups import usable_cpus
from miner.config.errors import ConfigurationError
from miner.config.evaluation_run import EvaluationRun
from miner.config.out_folder import check_out, made_once
from miner.config.recipes import RECIPES
from miner.config.run_files import CHECKPOINTS
from miner.config.settings import EnvironmentSettings, ModelSettings, Settings
from miner.environments import InfrastructureError
from miner.games.goofspiel import MATCH
from miner.reporting.progress import WarmStartProgress, print_line
from miner.training.ownership import held, locked
from mock_env_server.running import running_server
from mock_env_server.settings import Mode

TASK_ID = "demo"
MOST_PROCESSES = 4
"""Trainers of a demo at most: each takes a gigabyte."""

CACHE = Path(".cache/tiny-model")
REAL_CACHE = Path(".cache/smollm2")
SERVERS = 3
"""A server plays 48 graded games at once, an evaluation has 150; validators start one per GPU."""


def demo_command(
    model: Annotated[
        DemoModel, typer.Option(help="tiny: made here. smollm2: a pretrained one, 8 cards only.")
    ] = "tiny",
    sizes: Annotated[Sizes, typer.Option(help="Cards per hand: 8 only, or all five.")] = "8",
    seed: Annotated[int, typer.Option(min=0, help="Of tasks and sampling.")] = 0,
    out: Annotated[Path, typer.Option(help="Runs and published models go here.")] = Path("runs"),
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Training time; default: what the docs measured.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="faithful: /step plays wrong cards, as the real one does.")
    ] = "faithful",
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further settings.")
    ] = None,
) -> None:
    """Watch a small language model learn Goofspiel through the code that runs on GPUs.

    Makes a base model, starts the mock environment server, probes it, trains, publishes
    the best model, evaluates base and trained model on the grader's own games (250; 32 for
    smollm2), and writes report.html with the learning curve and a replayed game.
    """
    if (model, sizes) not in SHOWS:
        raise ConfigurationError(f"--model {model} learns 8 cards only: leave --sizes {sizes} out")
    console, show = Console(), SHOWS[model, sizes]
    started = time.monotonic()
    name = f"{show.name}-seed-{seed}"
    run_dir, published = out / name, out / "checkpoints" / TASK_ID / name
    check_out(out)
    seconds = seconds or show.training_seconds
    with ExitStack() as stack:
        stack.enter_context(only_demo(run_dir))
        print_line(console, show.expected(seconds))
        console.print(Rule("1  a base model", align="left"))
        base = _base_model(model, show, console)
        dtype = dtype_of(model)
        console.print(Rule(f"2  {SERVERS} mock environment servers", align="left"))
        stack.enter_context(ending_children())
        urls = [stack.enter_context(running_server(mode)).base_url for _ in range(SERVERS)]
        console.print(f"{', '.join(urls)}; their /step is {mode}", highlight=False)
        console.print(Rule("3  probe, train, publish", align="left"))
        stack.enter_context(watched(run_dir))
        overrides = (
            *(f"model.path={base}", f"output.dir={published}", f"run_dir={run_dir}"),
            *(f"seed={seed}", f"deadline.seconds={seconds}", f"model.dtype={dtype}"),
            *(setting or ()),
        )
        environ = os.environ | {SERVERS_VARIABLE: ",".join(urls)}
        train(RECIPES / f"{show.recipe}.toml", overrides, environ)
        console.print(Rule(f"4  the grader's {show.episodes} games", align="left"))
        trained = last_weights(base, run_dir) if show.last_weights else published
        _evaluate(base, trained, run_dir, show, dtype, urls, console)
        if show.prints_replies:
            from miner.cli.demo_replies import print_replies  # imports torch: seconds

            print_replies(base, trained, console)
        _show_results(run_dir, published, console)
    console.print(f"all of it took {(time.monotonic() - started) / 60:.1f} minutes")


def _show_results(run_dir: Path, published: Path, console: Console) -> None:
    """Write the report, and name what there is to look at."""
    console.print(Rule("5  what to look at", align="left"))
    report_command(run_dir)
    print_line(console, f"curve      {run_dir / 'learning_curve.png'}")
    print_line(console, f"model      {published}")


@contextmanager
def ending_children() -> Iterator[None]:
    """Let SIGTERM end this process as an error does, so that what it has started ends too."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def watched(run_dir: Path) -> Iterator[None]:
    """`miner watch` on the run; it prints its address. It ends with the demo."""
    process = subprocess.Popen([sys.executable, "-m", "miner", "watch", str(run_dir)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def only_demo(run_dir: Path) -> Iterator[None]:
    """Rename an earlier run of the same name: a demo shows learning from the start.

    Until its end no second one does: training holds the folder for a part of it alone.
    Raises: `ConfigurationError` if that run, or a demo of it, has not ended.
    """
    way_out = "wait for its end, or set another --seed or --out"
    with locked(run_dir, "demo", lambda owner: f"{owner} shows this demo in {run_dir}: {way_out}"):
        with held("run_dir", run_dir):
            if run_dir.exists():
                run_dir.rename(f"{run_dir}.{time.strftime('%Y%m%d-%H%M%S')}")
        yield


def train(config: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> None:
    """Train as in production, in separate processes. Raises: `typer.Exit` with their status."""
    processes = trainer_processes(
        Settings.load(config, overrides, environ).rollout.groups_per_step,
        cores=usable_cpus(),
    )
    command = [sys.executable, "-m", "miner", "train", "--config", str(config)]
    command += ["--processes", str(processes), *overrides]
    if status := subprocess.run(command, env=environ, check=False).returncode:
        raise typer.Exit(status)


def trainer_processes(games: int, cores: int) -> int:
    """Number of processes that share a step's games evenly: one per core, up to `MOST_PROCESSES`.

    A tiny model gains little from a second thread, and half of the time from a second process.
    """
    return max(n for n in range(1, min(cores, MOST_PROCESSES) + 1) if games % n == 0)


def last_weights(base: Path, run_dir: Path) -> Path:
    """The newest checkpoint's model, whether or not it was published."""
    from miner.config.run_files import newest_checkpoint
    from miner.learning.learner import write_checkpoint_model

    checkpoint = newest_checkpoint(run_dir / CHECKPOINTS)
    if checkpoint is None:
        raise ConfigurationError(
            "the training time was over before the first checkpoint: run the demo with more "
            "--seconds"
        )
    folder = run_dir / "last"
    folder.mkdir()
    write_checkpoint_model(base, checkpoint.path, folder)
    return folder


def _base_model(model: DemoModel, show: Show, console: Console) -> Path:
    if model == "smollm2":
        from miner.real_model import make_real_model

        return made_once(REAL_CACHE, make_real_model)
    from miner.tiny_model.build import base_recipe_for, cached_tiny_model

    recipe = base_recipe_for(show.deck_sizes)
    with WarmStartProgress(recipe.warm_start.steps, console=console) as progress:
        return cached_tiny_model(CACHE, recipe=recipe, progress=progress.update)


def dtype_of(model: DemoModel) -> str:
    """Dtype of a demo's model on this machine: the tiny one depends on the last bits."""
    from miner.real_model import dtype_here

    return dtype_here() if model == "smollm2" else "float32"


def _evaluate(
    base: Path,
    published: Path,
    run_dir: Path,
    show: Show,
    dtype: str,
    urls: Sequence[str],
    console: Console,
) -> None:
    """Everyone on the same games; results go into the run's folder."""
    from miner.cli.evaluation_session import run_evaluation

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
        run = EvaluationRun(
            model=ModelSettings(path=model),
            environment=EnvironmentSettings(
                servers=tuple(urls),
                channel="builtin",  # the server's own prompts, learned from it, without HTTP
                deck_sizes=show.deck_sizes,
            ),
            policy=baseline,
            name=name,
            episodes=show.episodes,
            temperature=temperature,
            concurrency=show.episodes,
            max_reply_tokens=16,
            replays=2 if name == "trained" else 0,
            out=run_dir,
            dtype=dtype,
        )
        if not run_evaluation(run, quiet):
            raise InfrastructureError(f"{name} could not be evaluated: run the demo again")
