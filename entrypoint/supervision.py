"""One supervised run: its files, supervisord to its end, the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from entrypoint import reaper
from entrypoint.outcome import Outcome, read_outcome
from entrypoint.run_plan import RunPlan
from entrypoint.supervisor_config import Program, render_supervisor_config, supervisor_command
from entrypoint.verdict import decide


def run_programs(
    plan: RunPlan, programs: Sequence[Program], environment: Mapping[str, str]
) -> Outcome:
    """Run `programs` under supervisord until the watchdog ends, and decide the exit status.

    The run's folder and the trainer's settings file exist already.
    """
    plan.outcome_file.unlink(missing_ok=True)  # of an earlier run in the same folder
    plan.write()
    plan.supervisor_file.write_text(render_supervisor_config(plan, programs))
    ended = reaper.run(
        supervisor_command(plan),
        environment,
        stop_at=plan.ends_at + plan.stop_seconds,
        kill_after=plan.stop_seconds + 1,
    )
    return decide(plan, ended, read_outcome(plan.outcome_file))
