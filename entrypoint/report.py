"""The plan in readable form: the parts of a dry run, printed as aligned lines."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence

from entrypoint.console import print_text
from entrypoint.hardware import GIB, Hardware
from entrypoint.job import Invocation
from entrypoint.ladder import LADDER
from entrypoint.layout import Topology
from entrypoint.memory import MemoryPlan
from entrypoint.run_cost import RunCost
from entrypoint.run_plan import RunPlan
from entrypoint.supervisor_config import Program, render_supervisor_config, supervisor_command
from miner.config.settings import EvaluationSettings, Settings, to_toml


def print_job(invocation: Invocation, hardware: Hardware, plan: RunPlan) -> None:
    """The job and the machine."""
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
    _table("Job", rows)


def print_cost(cost: RunCost, assumed: str, evaluation: EvaluationSettings) -> None:
    """Longest times of a run's parts and the steps that fit, with the basis of the estimate."""
    step = cost.step
    of_teachers = f", of them {cost.taught_steps:,} of teachers" if cost.taught_steps else ""
    share = evaluation.time_share
    bound = f", {share:.0%} of the time at most" if share < 1 else ""
    rhythm = f"every {evaluation.every_steps} steps{bound}"
    rows = [
        ("seconds a step", f"about {step.seconds:.3g}"),
        ("of them playing", f"{step.rollout:.3g}"),
        ("weights", f"{step.weights:.3g}"),
        ("learning", f"{step.learning:.3g}"),
        *([] if cost.taught is None else [("seconds a step of teachers", f"{cost.taught:.3g}")]),
        ("seconds until the base plays", f"{cost.start:.3g}"),
        ("seconds an evaluation", f"{cost.evaluation:.3g} for {cost.episodes:,} games, {rhythm}"),
        ("seconds a publication", f"{cost.publication:.3g}"),
        ("steps to expect", f"about {cost.steps:,}{of_teachers}"),
        ("assumed", assumed),
    ]
    _table("Estimate", rows)


def print_topology(topology: Topology) -> None:
    """Processes by GPU, with reasons and memory."""
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
    _table("Plan", rows)
    _table("Reasons", [(c.what, c.why) for c in topology.choices])
    for memory in topology.memory:
        _print_memory(memory)
    rungs = [(str(position), rung.name) for position, rung in enumerate(LADDER, 1)]
    _table("When memory runs out, in this order", rungs)


def print_programs(plan: RunPlan, programs: Sequence[Program]) -> None:
    """Every command, and supervisord's configuration."""
    rows = [("supervisord", shlex.join(supervisor_command(plan)))]
    for program in programs:
        variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in program.environment.items())
        rows.append((program.name, f"{variables} {shlex.join(program.command)}".strip()))
    _table("Commands", rows)
    _text("supervisord.conf", render_supervisor_config(plan, programs))


def print_settings(recipe: str, settings: Settings) -> None:
    """The trainer's settings file."""
    _text(f"trainer.toml (recipe {recipe})", to_toml(settings))


def _print_memory(memory: MemoryPlan) -> None:
    rows = [(name, f"{size / GIB:.2f}") for name, size in memory.items]
    rows.append(("used", f"{memory.used / GIB:.2f} ({memory.used / memory.total:.0%})"))
    rows.append(("there is", f"{memory.total / GIB:.2f}"))
    _table(f"Memory of one device: {memory.moment}", rows)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    _text(title, "".join(f"  {name:<{width}}  {value}\n" for name, value in rows))


def _text(title: str, text: str) -> None:
    print_text(f"== {title} ==\n{text}")


def _clock(moment: float, plan: RunPlan) -> str:
    after = moment - plan.started_at
    utc = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    return f"{utc} ({after / 60:.1f} minutes after the container's start)"


def _listed(gpus: tuple[int, ...]) -> str:
    return ", ".join(str(index) for index in gpus) or "none"
