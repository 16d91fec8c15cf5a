"""From the tournament's arguments to the exit status: the whole life of the container."""

import fcntl
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from entrypoint import preflight, reaper, report
from entrypoint.console import mask, print_line
from entrypoint.environment import program_environment, writable_folders
from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.hardware import Hardware, detect_hardware
from entrypoint.job import Invocation, parse_invocation
from entrypoint.layout import Topology
from entrypoint.model_facts import ModelFacts, read_model_facts
from entrypoint.outcome import Outcome, read_outcome
from entrypoint.paths import Paths
from entrypoint.pretended import pretend_hardware, pretend_model
from entrypoint.programs import plan_programs
from entrypoint.reaper import Ended
from entrypoint.run_cost import RunCost, run_cost
from entrypoint.run_plan import RunPlan, evaluation_seconds
from entrypoint.schedule import plan_run
from entrypoint.step_cost import assumptions
from entrypoint.supervisor_config import Program, render_supervisor_config, supervisor_command
from entrypoint.topology import NOT_SERVED, plan_topology
from entrypoint.trainer_settings import PlannedSettings, choose_games
from entrypoint.verdict import decide
from entrypoint.workload import workload
from miner.config.channel_facts import FACTS
from miner.config.contract import GAMES
from miner.config.errors import ConfigurationError
from miner.config.run_files import SETTINGS_FILE, has_begun
from miner.config.settings import Settings, to_toml
from miner.publishing.base_files import without_foreign_files
from miner.publishing.errors import PublishingError
from miner.publishing.output_path import is_published
from miner.publishing.publisher import Publisher

SERVER_WAIT_SECONDS = 15.0
"""Nothing is published yet, and the trainer's probe waits for servers too."""

SERVER_WAIT_SHARE = 0.1  # of the time given, at most


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the first process starts."""

    invocation: Invocation
    hardware: Hardware
    paths: Paths
    facts: ModelFacts
    topology: Topology
    plan: RunPlan
    cost: RunCost
    recipe: str
    settings: Settings
    programs: tuple[Program, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the container; the last line reports how it ended. Returns: the exit status."""
    started_at = time.time()
    _append_to_output()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        end = _run(sys.argv[1:] if arguments is None else arguments, started_at, stop)
    except Failure as failure:
        end = Outcome(failure.status, str(failure))
    except Exception as error:  # the boundary: any other defect gets its status and its line too
        with suppress(OSError):
            sys.stderr.write(mask(traceback.format_exc()))
        end = Outcome(ExitStatus.INTERNAL, f"{type(error).__name__}: {error}")
    print_line(f"exit {end.status.value} ({end.status.label}): {end.message}")
    return end.status.value


def _append_to_output() -> None:
    """Let all programs share a log that is a plain file: none overwrites another's lines."""
    if stat.S_ISREG(os.fstat(1).st_mode):
        flags = fcntl.fcntl(1, fcntl.F_GETFL)
        fcntl.fcntl(1, fcntl.F_SETFL, flags | os.O_APPEND)


def _run(arguments: Sequence[str], started_at: float, stop: threading.Event) -> Outcome:
    invocation = parse_invocation(arguments)
    for warning in invocation.warnings:
        print_line(f"warn {warning}")
    print_line(invocation.job.hours_note)
    prepared = prepare(invocation, started_at, os.environ)
    if invocation.dry_run:
        print_plan(prepared)
        return Outcome(ExitStatus.OK, "dry run, nothing was started")
    try:
        check(prepared, stop)
        if stop.is_set():
            raise Failure(ExitStatus.STOPPED, "asked to stop before the run began")
        game, why = choose_games(invocation.job)
        return supervise(prepared, stop) if game else publish_base(prepared, why, stop)
    except (Failure, OSError) as error:
        return published_before(prepared, error, stop)


def published_before(
    prepared: Prepared, error: Failure | OSError, stop: threading.Event
) -> Outcome:
    """The outcome of a start that failed where an earlier life of this container has published.

    Raises: `error` where there is no verified model, and in a run by hand, whose user is to see it.
    """
    status = error.status if isinstance(error, Failure) else ExitStatus.DISK
    if not prepared.plan.by_hand and is_published(prepared.plan.output_dir):
        cause, ended = Outcome(status, str(error)), Ended(0, asked=None, overdue=False)
        outcome = decide(prepared.plan, ended, cause, stop.is_set)
        if outcome.status is ExitStatus.OK:
            return outcome
    raise error


def publish_base(prepared: Prepared, why: str, stop: threading.Event) -> Outcome:
    """Publish the base as it is: for a job whose games cannot be trained here.

    Then the miner publishes it again, which may fix its chat template: a separate program, since
    it imports torch. If that fails the base stays; `decide` loads it where there is time.
    """
    plan, model_dir = prepared.plan, prepared.paths.model_dir
    cause, ended = Outcome(ExitStatus.TRAINER, why), Ended(0, asked=None, overdue=False)
    try:
        Publisher(plan.output_dir, full_check=False, take_over=True).publish_base(model_dir)
    except PublishingError as error:
        cause = Outcome(ExitStatus.TRAINER, f"{why}; {error}")
    else:
        ended = _fix_template(prepared, stop)
    return decide(plan, ended, cause, stop.is_set)


def _fix_template(prepared: Prepared, stop: threading.Event) -> Ended:
    environment = program_environment(prepared.paths, os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    ended, why = Ended(0, asked=None, overdue=False), ""
    try:
        base = _linked(prepared).settings.model.path
        folders = (str(base), str(prepared.plan.output_dir))
        ended = reaper.run(
            [sys.executable, "-m", "miner", "publish-base", *folders],
            environment,
            stop_at=prepared.plan.ends_at,
            kill_after=prepared.plan.stop_seconds,
            asked_before=stop.is_set,
        )
    except OSError as error:
        why = str(error)
    if ended.exit_status:
        cut_off = ended.asked or ended.overdue
        why = "it was cut off" if cut_off else f"exit status {ended.exit_status}"
    if why:
        print_line(f"warn the base model stays as it came, its chat template is not fixed: {why}")
    return ended


def prepare(invocation: Invocation, started_at: float, environ: Mapping[str, str]) -> Prepared:
    """Hardware, model, topology, settings, commands; nothing is written. Raises: `Failure`."""
    hardware = preflight.usable(_hardware(invocation, environ))
    paths = Paths.of(invocation.job, environ)
    try:
        facts = _model_facts(invocation, paths)
    except Failure:
        _check_asked(invocation)
        raise
    wanted = PlannedSettings(invocation, facts.shape.parameters)
    served = facts.architecture not in NOT_SERVED
    batch = wanted.batch_shape()
    topology = plan_topology(hardware, facts.shape, batch, served=served)
    plan = plan_run(
        invocation.job,
        paths,
        topology,
        facts,
        started_at,
        environ,
        by_hand=invocation.by_hand,
        adapter_learning_rate=wanted.adapter_learning_rate(),
        asks_servers=FACTS[wanted.settings.environment.channel].asks_servers,
    )
    batch = replace(batch, seconds=plan.trainer_ends_at - plan.started_at)
    cost = run_cost(batch, topology, facts.shape, hardware, weight_bytes=facts.weight_bytes)
    if topology.memory_share:
        alone = topology.without_engine()
        slow = run_cost(batch, alone, facts.shape, hardware, weight_bytes=facts.weight_bytes)
        unserved = wanted.planned(paths, plan, alone, hardware.cpus, slow).evaluation
        plan = plan.model_copy(update={"unserved_evaluation": unserved})
    return Prepared(
        invocation=invocation,
        hardware=hardware,
        paths=paths,
        facts=facts,
        topology=topology,
        plan=plan,
        cost=cost,
        recipe=wanted.recipe.name,
        settings=wanted.planned(paths, plan, topology, hardware.cpus, cost),
        programs=plan_programs(plan, topology, paths.model_dir, hardware.cpus),
    )


def _check_asked(invocation: Invocation) -> None:
    """Raise `Failure` (ARGUMENTS) for games and settings that no model could make usable."""
    PlannedSettings(invocation, parameters=1)
    game, why = choose_games(invocation.job)
    if not game:
        raise Failure(ExitStatus.ARGUMENTS, f"--dataset-type: {why}; known: {', '.join(GAMES)}")


def _hardware(invocation: Invocation, environ: Mapping[str, str]) -> Hardware:
    if invocation.gpus == "0":
        return detect_hardware(environ).without_gpus("--gpus 0")
    if invocation.gpus is not None:
        return pretend_hardware(invocation.gpus)
    return detect_hardware(environ)


def _model_facts(invocation: Invocation, paths: Paths) -> ModelFacts:
    if invocation.model_config is not None:
        return pretend_model(invocation.model_config)
    try:
        return read_model_facts(paths.model_dir)
    except Failure as failure:
        if not invocation.dry_run:
            raise
        way_out = "to plan without it: --model-config with its config.json or a size such as 7B"
        raise Failure(failure.status, f"{failure}; {way_out}") from None


def print_plan(prepared: Prepared) -> None:
    """The dry run's output."""
    report.print_job(prepared.invocation, prepared.hardware, prepared.plan)
    for line in (*preflight.check_gpus(prepared.hardware), *preflight.check_model(prepared.facts)):
        print_line(str(line))
    report.print_topology(prepared.topology)
    work = workload(prepared.settings).within(prepared.topology.episode_tokens)
    assumed = assumptions(work, trees=prepared.facts.shape.trees)
    report.print_cost(prepared.cost, assumed, prepared.settings.evaluation)
    report.print_settings(prepared.recipe, prepared.settings)
    report.print_programs(prepared.plan, prepared.programs)


def check(prepared: Prepared, stop: threading.Event) -> None:
    """Preflight: log each check's line. Raises: the first `Failure`."""
    for line in _checks(prepared, stop):
        print_line(str(line))
        if line.level == "fail":
            raise Failure(line.status, f"{line.name}: {line.message}")


def _checks(prepared: Prepared, stop: threading.Event) -> Iterator[preflight.Check]:
    job, output_dir = prepared.invocation.job, prepared.plan.output_dir
    yield from preflight.check_gpus(prepared.hardware)
    yield preflight.check_shared_memory(prepared.hardware)
    yield from preflight.check_model(prepared.facts)
    yield preflight.check_output(output_dir)
    published = is_published(output_dir)
    yield preflight.check_disk(output_dir.parent, prepared.facts, published=published)
    seconds = min(SERVER_WAIT_SECONDS, job.seconds * SERVER_WAIT_SHARE)
    channel = prepared.settings.environment.channel
    if job.servers and FACTS[channel].asks_servers:
        text = f"waiting for {len(job.servers)} to answer, {seconds:.0f} s at most"
        yield preflight.Check("ok", "environment servers", text)
    yield preflight.check_servers(job.servers, channel, seconds=seconds, stop=stop)


def supervise(prepared: Prepared, stop: threading.Event) -> Outcome:
    """Write the run's settings, make its folders, run it."""
    prepared = _linked(prepared)
    plan, topology = prepared.plan, prepared.topology
    libraries = prepared.hardware.cuda_libraries
    environment = program_environment(prepared.paths, os.environ, libraries)
    for folder in (plan.train_dir, *writable_folders(environment, prepared.paths)):
        folder.mkdir(parents=True, exist_ok=True)
    plan.settings_file.write_text(to_toml(_resumable(prepared)))
    game, why = choose_games(prepared.invocation.job)
    print_line(
        f"plan: {topology.layout}, {game} ({why}), recipe {prepared.recipe}; "
        f"files of the run in {plan.run_dir}"
    )
    return run_programs(plan, prepared.programs, environment, stop)


def _resumable(prepared: Prepared) -> Settings:
    """The planned settings. A run that an earlier life of this container began keeps its held-out
    games and the tuning and ZeRO stage that its ladder had reached, without which it would not
    resume. Other settings by hand are left as they are, to be refused where they differ."""
    folder, settings = prepared.plan.train_dir, prepared.settings
    if not has_begun(folder):
        return settings
    try:
        before = Settings.load(folder / SETTINGS_FILE, environ={})
    except ConfigurationError:  # the trainer reports it
        return settings
    seconds = evaluation_seconds(settings.evaluation, before.evaluation.episodes)
    evaluation = before.evaluation.model_dump() | {"seconds": seconds}  # vLLM plays again
    if prepared.plan.by_hand:
        given_up = before.evaluation == prepared.plan.unserved_evaluation
        return settings.having(evaluation=evaluation) if given_up else settings
    settings = settings.having(
        optimizer={"zero_stage": before.optimizer.zero_stage}, evaluation=evaluation
    )
    if (settings.model.tuning, before.model.tuning) != ("full", "lora"):
        return settings
    return settings.having(
        model={"tuning": "lora"}, optimizer={"learning_rate": before.optimizer.learning_rate}
    )


def _linked(prepared: Prepared) -> Prepared:
    """The same for a folder of links where the base's own has files that loaders would misread."""
    plan, base = prepared.plan, prepared.paths.model_dir
    links = without_foreign_files(base, plan.run_dir / "base")
    if links == base:
        return prepared
    return replace(
        prepared,
        settings=prepared.settings.having(model={"path": links}),
        programs=plan_programs(plan, prepared.topology, links, prepared.hardware.cpus),
    )


def run_programs(
    plan: RunPlan,
    programs: Sequence[Program],
    environment: Mapping[str, str],
    stop: threading.Event,
) -> Outcome:
    """Run `programs` under supervisord until the watchdog ends, and decide the exit status.

    The run's folder and the trainer's settings file exist already.

    Args:
        stop: set if this process was asked to end before the programs are there to be asked.
    """
    plan.outcome_file.unlink(missing_ok=True)  # of an earlier run in the same folder
    plan.write()
    plan.supervisor_file.write_text(render_supervisor_config(plan, programs))
    ended = reaper.run(
        supervisor_command(plan),
        environment,
        stop_at=plan.ends_at + plan.stop_seconds,
        kill_after=plan.stop_seconds + 1,
        asked_before=stop.is_set,
    )
    return decide(plan, ended, read_outcome(plan.outcome_file), stop.is_set)
