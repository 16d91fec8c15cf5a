"""The plan as a person reads it: tables in a terminal, plain aligned lines elsewhere."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from entrypoint.hardware import GIB, Hardware
from entrypoint.job import Invocation
from entrypoint.ladder import LADDER
from entrypoint.masking import mask
from entrypoint.memory import MemoryPlan
from entrypoint.run_plan import RunPlan
from entrypoint.step_cost import StepCost, assumptions
from entrypoint.supervisor_config import Program, render_supervisor_config, supervisor_command
from entrypoint.topology import Topology
from miner.config.settings import Settings, to_toml

PLAIN_WIDTH = 10_000  # no wrapping in a log: a line is a line


class PlanPrinter:
    """Prints the parts of a dry run to standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _default_console()

    def job(self, invocation: Invocation, hardware: Hardware, plan: RunPlan) -> None:
        """What is asked for, and on what machine."""
        job = invocation.job
        kinds = Counter(f"{gpu.name} {gpu.memory / GIB:.0f} GiB" for gpu in hardware.gpus)
        gpus = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        rows = [
            ("task", job.task_id),
            ("base model", job.model),
            ("games", ", ".join(job.environments)),
            ("environment servers", ", ".join(job.servers) or "none"),
            ("hours", job.hours_note),
            ("trainer ends", _clock(plan.trainer_ends_at, plan)),
            ("everything ends", _clock(plan.ends_at, plan)),
            ("output", str(plan.output_dir)),
            ("GPUs", gpus or f"none ({hardware.note})"),
            ("driver", hardware.driver or "none"),
            ("CPUs, memory", f"{hardware.cpus}, {hardware.memory / GIB:.0f} GiB"),
            ("shared memory", f"{hardware.shared_memory / GIB:.1f} GiB"),
        ]
        self._table("Job", ("what", "value"), rows)

    def cost(self, cost: StepCost, plan: RunPlan) -> None:
        """How long a step may take and how many fit, with what that rests on."""
        steps = int((plan.trainer_ends_at - plan.started_at) / cost.seconds)
        rows = [
            ("seconds a step", f"about {cost.seconds:.2g}"),
            ("of them playing", f"{cost.rollout:.2g}"),
            ("weights", f"{cost.weights:.2g}"),
            ("learning", f"{cost.learning:.2g}"),
            ("steps in the time given", f"about {steps:,}"),
            ("assumed", assumptions()),
        ]
        self._table("Estimate", ("what", "value"), rows)

    def topology(self, topology: Topology) -> None:
        """Who runs where, why, and what memory it takes."""
        rows = [
            ("layout", topology.layout),
            ("inference GPUs", _listed(topology.inference_gpus)),
            ("trainer GPUs", _listed(topology.trainer_gpus)),
            ("tuning", topology.tuning),
            ("ZeRO stage", str(topology.zero_stage or "no DeepSpeed")),
            ("dtype", topology.dtype),
            ("groups per step", str(topology.groups)),
            ("pass", f"{topology.pass_tokens} tokens"),
            ("gradient checkpointing", "on" if topology.checkpointing else "off"),
            ("longest episode", f"{topology.episode_tokens} tokens"),
            ("live episodes", f"{topology.live_episodes} per engine"),
        ]
        self._table("Plan", ("what", "value"), rows)
        self._table("Reasons", ("choice", "why"), [(c.what, c.why) for c in topology.choices])
        for memory in topology.memory:
            self._memory(memory)
        rungs = [(str(position), rung.name) for position, rung in enumerate(LADDER, 1)]
        self._table("When memory runs out, in this order", ("rung", "what is tried"), rungs)

    def programs(self, plan: RunPlan, programs: Sequence[Program]) -> None:
        """Every command, and supervisord's configuration."""
        rows = [("supervisord", shlex.join(supervisor_command(plan)))]
        for program in programs:
            variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in program.environment.items())
            rows.append((program.name, f"{variables} {shlex.join(program.command)}".strip()))
        self._table("Commands", ("program", "command"), rows)
        self._text("supervisord.conf", render_supervisor_config(plan, programs))

    def settings(self, recipe: str, settings: Settings) -> None:
        """The trainer's settings file."""
        self._text(f"trainer.toml (recipe {recipe})", to_toml(settings))

    def _memory(self, memory: MemoryPlan) -> None:
        rows = [(name, f"{size / GIB:.2f}") for name, size in memory.items]
        rows.append(("used", f"{memory.used / GIB:.2f} ({memory.used / memory.total:.0%})"))
        rows.append(("there is", f"{memory.total / GIB:.2f}"))
        self._table(f"Memory of one device: {memory.moment}", ("what", "GiB"), rows)

    def _table(self, title: str, columns: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
        if not self._console.is_terminal:
            width = max((len(name) for name, _ in rows), default=0)
            lines = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
            self._text(title, lines + "\n")
            return
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(mask(cell) for cell in row))
        self._console.print(table)

    def _text(self, title: str, text: str) -> None:
        self._console.print(f"== {title} ==", markup=False, highlight=False)
        self._console.print(mask(text), markup=False, highlight=False)


def _default_console() -> Console:
    return Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)


def _clock(moment: float, plan: RunPlan) -> str:
    after = moment - plan.started_at
    utc = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    return f"{utc} ({after / 60:.1f} minutes after the container's start)"


def _listed(gpus: tuple[int, ...]) -> str:
    return ", ".join(str(index) for index in gpus) or "none"
