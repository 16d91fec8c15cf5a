"""`python -m miner`: the command line; a failure is one sentence on stderr."""

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import typer

from miner.cli.agent import agent_command
from miner.cli.audit import audit_command
from miner.cli.contract import contract_command
from miner.cli.demo import demo_command
from miner.cli.distinct import distinct_command
from miner.cli.duel import duel_command, league_command
from miner.cli.duel_demo import duel_demo_command
from miner.cli.evaluate import evaluate_command
from miner.cli.explain import explain_command
from miner.cli.gate import gate_command
from miner.cli.new_environment import new_environment_command
from miner.cli.probe import probe_command
from miner.cli.prompts import prompts_command
from miner.cli.publish_base import publish_base_command
from miner.cli.report import report_command
from miner.cli.settings import settings_command
from miner.cli.train import train_command
from miner.cli.unread_output import continue_unread
from miner.cli.watch import watch_command
from miner.config.errors import ConfigurationError
from miner.config.statuses import TrainerStatus
from miner.distributed.launch import launched
from miner.environments import EnvironmentFault
from miner.heavy_imports import quiet_libraries
from miner.inference.sampler import EngineLostError
from miner.publishing.errors import PublishingError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, evaluate and look at models that play environment tournaments.",
)
app.command("train")(train_command)
app.command("audit")(audit_command)
app.command("settings")(settings_command)
app.command("evaluate")(evaluate_command)
app.command("probe")(probe_command)
app.command("new-environment")(new_environment_command)
app.command("report")(report_command)
app.command("explain")(explain_command)
app.command("watch")(watch_command)
app.command("demo")(demo_command)
app.command("duel-demo")(duel_demo_command)
app.command("duel")(duel_command)
app.command("league")(league_command)
app.command("gate")(gate_command)
app.command("prompts")(prompts_command)
app.command("contract")(contract_command)
app.command("distinct")(distinct_command)
app.command("agent")(agent_command)
app.command("publish-base")(publish_base_command)


def main() -> None:
    """Run the command line; a failure that the user can fix is one sentence on stderr."""
    quiet_libraries()
    continue_unread()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        _run()
    except SystemExit as end:
        if launched():  # a rank that is done may still be aborted by torch's threads at exit
            code = end.code or 0
            _leave(code if isinstance(code, int) else TrainerStatus.CRASHED)
        raise
    except BaseException:
        if not launched():
            raise
        traceback.print_exc()
        _leave(TrainerStatus.CRASHED)


def _run() -> None:
    try:
        app()
    except (ConfigurationError, EnvironmentFault, PublishingError, EngineLostError) as error:
        rank = os.environ.get("RANK", "0")  # of several trainer processes
        print(f"error{'' if rank == '0' else f' (rank {rank})'}: {error}", file=sys.stderr)
        sys.exit(_status(error))
    except OSError as error:
        print(f"error: {_described(error)}", file=sys.stderr)
        sys.exit(TrainerStatus.DISK)


def _leave(status: int) -> NoReturn:
    """End at once. A rank that failed would wait for the others while it ends its process groups,
    and they wait for it; the launcher ends them by its status."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _described(error: OSError) -> str:
    """The file, the cause, and the line of ours that it was used in."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f for f in reversed(frames) if "/miner/" in f.filename), frames[-1])
    return (
        f"{what} ({Path(where.filename).name}, line {where.lineno}): free space, or name a path "
        "that can be read and written"
    )


def _status(error: Exception) -> int:
    if isinstance(error, EngineLostError):
        return TrainerStatus.INFERENCE_LOST
    if isinstance(error, EnvironmentFault):
        return TrainerStatus.UNREACHABLE
    return TrainerStatus.DISK if isinstance(error, PublishingError) else TrainerStatus.REFUSED


if __name__ == "__main__":
    main()
