"""End of a run, passed from the processes under supervisord to PID 1 through one file."""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from entrypoint.exit_status import ExitStatus
from miner.config.run_files import write_atomically


@dataclass(frozen=True)
class Outcome:
    """The end of the run: the exit status if no model verifies, and the sentence for the log."""

    status: ExitStatus
    message: str


_FILE = TypeAdapter(Outcome)


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Leave the outcome for PID 1; the first one written stays, it is nearest to the cause."""
    if not path.exists():
        # a path may be any bytes
        message = outcome.message.encode(errors="backslashreplace").decode()
        written = _FILE.dump_json(replace(outcome, message=message)).decode()
        write_atomically(path, written + "\n")


def read_outcome(path: Path) -> Outcome | None:
    """Return the outcome that was left, None where its writer was killed."""
    try:
        return _FILE.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
