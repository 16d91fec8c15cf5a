"""Stands for `python -m entrypoint`: a given plan and fake programs, but the real supervisord."""

import json
import os
import sys
from pathlib import Path
from threading import Event

from entrypoint.console import print_line
from entrypoint.main import run_programs
from entrypoint.run_plan import RunPlan
from entrypoint.supervisor_config import Program, watchdog_program


def main() -> int:
    plan = RunPlan.read(Path(sys.argv[1]))
    commands = json.loads(sys.argv[2])
    programs = [
        Program(name, tuple(command), starts_itself=name != "trainer", restarts=name == "inference")
        for name, command in commands.items()
    ]
    end = run_programs(plan, [*programs, watchdog_program(plan)], os.environ, Event())
    print_line(f"exit {end.status.value} ({end.status.label}): {end.message}")
    return end.status.value


sys.exit(main())
