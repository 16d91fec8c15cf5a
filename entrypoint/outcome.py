"""How a run ended, handed from the processes under supervisord to PID 1 through one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from entrypoint.exit_status import ExitStatus
from entrypoint.run_plan import read_json_object
from miner.config.run_files import write_atomically


@dataclass(frozen=True)
class Outcome:
    """The end of the run: the exit status if no model verifies, and the sentence for the log."""

    status: ExitStatus
    message: str


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Leave the outcome for PID 1; the first one written stays, it is nearest to the cause."""
    if not path.exists():
        text = json.dumps({"status": outcome.status.name, "message": outcome.message})
        write_atomically(path, text + "\n")


def read_outcome(path: Path) -> Outcome | None:
    """The outcome that was left, None if there is none (its writer was killed)."""
    value = read_json_object(path) or {}
    status, message = value.get("status"), value.get("message")
    if not isinstance(message, str) or status not in ExitStatus.__members__:
        return None
    return Outcome(ExitStatus[str(status)], message)
