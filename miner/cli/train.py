"""`python -m miner train`."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from miner.config.channel_facts import FACTS
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings, check_divides, to_toml
from miner.config.statuses import TrainerStatus
from miner.distributed.launch import launch, launched, wait_until_prepared
from miner.heavy_imports import heavy_imports, quiet_libraries
from miner.training.ownership import owned, undone_if_refused


def train_command(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings, dotted: rollout.group_size=16 environment.deck_sizes='[8]'. "
            "They win over the file. `miner settings` explains each.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the settings that this run uses as TOML and stop."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Trainer processes on this machine, one GPU each.")
    ] = 1,
) -> None:
    """Learn a game and publish the best model.

    Plays whole episodes on the servers of ENVIRONMENT_SERVER_URLS (or in this process, with
    environment.channel=builtin), learns by GRPO, and keeps a loadable model at output.dir from the
    first minute. A run that was killed resumes where it was when started again with the same
    run_dir.

    Example:
      python -m miner train model.path=MODEL output.dir=OUT environment.channel=builtin
    """
    settings = Settings.load(config, overrides or ())
    check_divides(settings, processes)
    if dry_run:
        typer.echo(to_toml(settings, used_only=True), nl=False)
        return
    quiet_libraries()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with heavy_imports():
        from miner.training.preparation import checked_paths, prepare_run  # imports torch: seconds

    if launched():
        _train(settings)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigurationError(
            "WORLD_SIZE is set, by torchrun for example: start several trainer processes with "
            "--processes N instead"
        )
    checked_paths(settings)
    with owned(settings), undone_if_refused(settings.run_dir):
        in_process = processes == 1 and not settings.optimizer.zero_stage
        prepare = partial(prepare_run, settings, in_process=in_process)
        if processes == 1:
            prepare()
            _train(settings)
            return
        options = ["--config", str(config)] if config else []
        rank = [sys.executable, "-m", "miner", "train", *options, *(overrides or ())]
        _end_like(launch(processes, rank, prepare))


def _train(settings: Settings) -> None:
    """One trainer process, alone or a rank; its exit status is for the user and the watchdog."""
    with heavy_imports():
        from miner.distributed.ranks import LeadFailedError, join_ranks
        from miner.inference.engines import EngineMemoryError, is_out_of_memory
        from miner.learning.update_guard import TrainingDivergedError
        from miner.reporting.progress import print_line
        from miner.training.rollout_function import StepLostError
        from miner.training.run import train

    if launched():
        wait_until_prepared()
    ranks = join_ranks(settings)
    console = Console(quiet=not ranks.leads)
    container = "CONTAINER:" if settings.output.take_over else ""
    print_line(console, f"watch it    python -m miner watch {container}{settings.run_dir}")
    if penalty := settings.reward.invalid_reply_penalty:
        print_line(
            console, f"reward      an episode's score less {penalty:g} for each invalid reply"
        )
    try:
        result = train(settings, console, ranks)
    except LeadFailedError:
        raise typer.Exit(TrainerStatus.CRASHED) from None  # the launcher reports rank 0's status
    except TrainingDivergedError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(TrainerStatus.CRASHED) from None
    except (MemoryError, RuntimeError, ValueError) as error:
        if not is_out_of_memory(error):
            if not isinstance(error, StepLostError):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(TrainerStatus.CRASHED) from None
        status = TrainerStatus.OUT_OF_MEMORY
        lower = "optimizer.micro_batch_tokens"
        if not FACTS[settings.environment.channel].supervised:  # there it is another run
            lower += " or rollout.max_episode_tokens"
        if isinstance(error, EngineMemoryError):
            status, lower = TrainerStatus.ENGINE_OUT_OF_MEMORY, "rollout.memory_share"
        typer.echo(f"error: out of memory: {error}; lower {lower}", err=True)
        raise typer.Exit(status) from None
    ranks.detach()
    score = "not evaluated" if result.score is None else f"held-out score {result.score:.3f}"
    print_line(console, f"published step {result.step} ({score}) at {result.output_dir}")
    if ranks.leads:
        print_line(console, f"report      {_report(settings.run_dir)}")


def _report(run_dir: Path) -> str:
    """The page of a run that has published; one that cannot be made must not fail the run."""
    try:
        from miner.reporting.page import write_report

        return str(write_report(run_dir))
    except Exception as error:
        return f"could not be written: {type(error).__name__}: {error}"


def _end_like(status: int) -> NoReturn:
    """End as the ranks did: with their status, or by the signal that killed them."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise typer.Exit(status)
