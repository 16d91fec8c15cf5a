"""supervisord.conf as data: the programs of a run and how supervisord has to treat them.

What the container's limits ask for (measured): no `user=` and no inet server (no
capabilities), stdout through /dev/fd/1 without rotation, one group (or programs are stopped one
after another), a stop time below the container's grace period, socket and pid file in /tmp.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.run_plan import WATCHDOG, RunPlan

GROUP = "miner"


@dataclass(frozen=True)
class Program:
    """One program under supervisord.

    Attributes:
        environment: variables on top of supervisord's own.
        starts_itself: true if it starts with supervisord; the trainer is started by the watchdog.
        restarts: true if supervisord starts it again whenever it ends.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_itself: bool = True
    restarts: bool = False


def watchdog_program(plan: RunPlan) -> Program:
    """The watchdog: the critical program, whose end is the end of the run."""
    return Program(WATCHDOG, (sys.executable, "-m", "entrypoint.watchdog", str(plan.plan_file)))


def supervisor_command(plan: RunPlan) -> tuple[str, ...]:
    """The command line of supervisord itself."""
    return (sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(plan.supervisor_file))


def render_supervisor_config(plan: RunPlan, programs: Sequence[Program]) -> str:
    """supervisord.conf for `programs`, the watchdog among them.

    Raises: `Failure` (ARGUMENTS) for a command that supervisord's ini syntax cannot hold.
    """
    listener = (
        *(sys.executable, "-m", "entrypoint.listener"),
        *("--critical", WATCHDOG, "--outcome", str(plan.outcome_file)),
    )
    sections = [
        _section(
            "supervisord",
            nodaemon="true",
            silent="true",
            logfile=_escaped(str(plan.run_dir / "supervisord.log")),
            logfile_maxbytes="0",
            pidfile=str(plan.socket.with_suffix(".pid")),
            childlogdir=_escaped(str(plan.run_dir)),
        ),
        _section("unix_http_server", file=str(plan.socket), chmod="0700"),
        _section(
            "rpcinterface:supervisor",
            **{
                "supervisor.rpcinterface_factory": (
                    "supervisor.rpcinterface:make_main_rpcinterface"
                )
            },
        ),
        _section(f"group:{GROUP}", programs=",".join(program.name for program in programs)),
        *(_program_section(program, plan) for program in programs),
        _section(
            "eventlistener:exit-listener",
            command=_command(listener),
            events="PROCESS_STATE_EXITED,PROCESS_STATE_FATAL",
            autorestart="true",
            stdout_logfile="NONE",  # it is the protocol's channel
            stderr_logfile="/dev/fd/2",
            stderr_logfile_maxbytes="0",
        ),
    ]
    return "\n".join(sections)


def _program_section(program: Program, plan: RunPlan) -> str:
    options = {
        "command": _command(program.command),
        "autostart": str(program.starts_itself).lower(),
        "autorestart": str(program.restarts).lower(),
        "startsecs": "1" if program.restarts else "0",
        "startretries": "3",
        "stopsignal": "TERM",
        "stopwaitsecs": f"{max(1, round(plan.stop_seconds))}",
        "stopasgroup": "true",
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": "/dev/fd/1",
        "stdout_logfile_maxbytes": "0",
    }
    if program.environment:
        options["environment"] = ",".join(
            f"{name}={_escaped(_quoted(value))}" for name, value in program.environment.items()
        )
    return _section(f"program:{program.name}", **options)


def _section(title: str, **options: str) -> str:
    lines = [f"[{title}]", *(f"{key}={value}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def _command(words: Sequence[str]) -> str:
    return _escaped(shlex.join(words))


def _quoted(value: str) -> str:
    if '"' in value:
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"{value!r} cannot be in supervisord.conf, which knows no quote inside quotes",
        )
    return f'"{value}"'


def _escaped(text: str) -> str:
    if any(forbidden in text for forbidden in ("\n", " ;", " #")):
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"{text!r} cannot be in supervisord.conf, where ' ;' and ' #' start comments: "
            "choose other names and folders",
        )
    return text.replace("%", "%%")
