"""The exit status: 0 exactly if the folder at the output path verifies."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from entrypoint.exit_status import ExitStatus
from entrypoint.outcome import Outcome
from entrypoint.reaper import Ended
from entrypoint.run_plan import RunPlan
from miner.config.contract import FIRST_FORMAT_DTYPE, ServedDtype
from miner.publishing import fresh_process
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.output_path import published_step
from miner.publishing.publisher import Publisher
from miner.publishing.structure import ModelReport
from miner.publishing.verify import verify_model

FEWEST_SECONDS = 20.0  # below it, loading the model would not end in time


def decide(
    plan: RunPlan,
    ended: Ended,
    outcome: Outcome | None,
    asked: Callable[[], bool] = lambda: False,
) -> Outcome:
    """The exit status and the last line.

    A model at the output path does not excuse a refusal of the user's settings: it is not
    what they asked for. A validator's own job, started again, still ends with it.

    Args:
        ended: end of supervisord.
        outcome: outcome that the watchdog left.
        asked: true if a handler has taken SIGTERM since.
    """
    cause = cause_of(ended, outcome)
    seconds = 0.0 if ended.asked else plan.kill_at - time.time()
    try:
        report = verify_output(plan.output_dir, seconds, plan.served_dtype, asked)
    except UnverifiedModelError as error:
        return Outcome(cause.status, f"{cause.message}; no verified model: {error}")
    if plan.by_hand and cause.status is ExitStatus.REFUSED:
        return Outcome(cause.status, f"{cause.message}; {plan.output_dir} holds an earlier model")
    checked = f"loaded in {plan.served_dtype}" if report.loaded else "complete"
    size = f"{report.parameters:,} parameters"
    return Outcome(
        ExitStatus.OK, f"a model of {size}, {checked}, is at {plan.output_dir} ({cause.message})"
    )


def cause_of(ended: Ended, outcome: Outcome | None) -> Outcome:
    """Cause of the run's end, apart from what it has published."""
    if ended.asked:
        return Outcome(ExitStatus.STOPPED, f"asked to stop by {ended.asked}")
    if outcome is not None:
        return outcome
    if ended.overdue:
        return Outcome(ExitStatus.DEADLINE, "the time was over")
    return Outcome(ExitStatus.SUPERVISOR, f"supervisord ended unasked (status {ended.exit_status})")


def verify_output(
    folder: Path,
    seconds: float,
    dtype: ServedDtype = FIRST_FORMAT_DTYPE,
    asked: Callable[[], bool] = lambda: False,
) -> ModelReport:
    """Check the published folder: by loading it where `seconds` allow it, else structurally.

    A model was loaded and checked before it was published, so the structural check is enough when
    there is no time, or none left because SIGTERM arrives meanwhile. A base model is held to what
    it came with, anything else to all of it. Main thread only.
    Raises: `UnverifiedModelError`.
    """
    if not folder.exists():
        _repair(folder)
    strict = published_step(folder) != 0  # 0: the base
    report = verify_model(folder, load=False, strict=strict)
    if seconds < FEWEST_SECONDS:
        return report
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if asked():  # before this handler was there
            return report
        return fresh_process.verify(folder, strict=strict, dtype=dtype, timeout=seconds)
    except UnverifiedModelError:
        raise
    except (PublishingError, _InterruptedError):  # the check itself was killed, slow or cut off
        return report
    finally:
        signal.signal(signal.SIGTERM, previous)


class _InterruptedError(Exception):
    """SIGTERM came while the model was being loaded."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _InterruptedError


def _repair(folder: Path) -> None:
    """Put back what a kill between two renames of the publisher took away."""
    try:
        Publisher(folder)
    except PublishingError as error:
        raise UnverifiedModelError(str(error)) from error
