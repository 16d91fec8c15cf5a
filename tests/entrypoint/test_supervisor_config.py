"""supervisord.conf, as text and as supervisord itself reads it."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from entrypoint.batch import BatchShape
from entrypoint.exit_status import Failure
from entrypoint.memory import ModelShape
from entrypoint.pretended import pretend_hardware
from entrypoint.programs import CODE, plan_programs, trainer_program
from entrypoint.run_plan import RunPlan
from entrypoint.supervisor_config import Program, render_supervisor_config
from entrypoint.topology import plan_topology
from tests.entrypoint.plans import run_plan

SHAPE = ModelShape(494_032_768, 24, 896, 4864, 14, 2, 64, 151936, 32768)


def plan(folder: Path = Path("/"), **fields: object) -> RunPlan:
    return run_plan(folder, socket=folder / "run/miner.sock", **fields)


def programs(run: RunPlan, inventory: str) -> tuple[Program, ...]:
    hardware = pretend_hardware(inventory)
    topology = plan_topology(hardware, SHAPE, BatchShape(servers=4))
    return plan_programs(run, topology, Path("/cache/models/acme--tiny"), hardware.cpus)


@pytest.mark.parametrize("inventory", ["0", "1xH100-80GB", "4xH100-80GB"])
def test_configurations_are_as_reviewed(inventory: str, golden: Callable[[str, str], None]) -> None:
    text = render_supervisor_config(plan(), programs(plan(), inventory))
    portable = text.replace(sys.executable, "python").replace(str(CODE), "/app")
    golden(f"supervisord-{inventory}.conf", portable)


@pytest.mark.parametrize(
    ("cpus", "processes", "threads"), [(4, 1, 4), (8, 2, 4), (64, 2, 8), (64, 1, 8), (3, 4, 1)]
)
def test_the_trainers_processes_share_the_cpus(cpus: int, processes: int, threads: int) -> None:
    hardware = pretend_hardware(f"{processes}xH100-80GB")
    topology = plan_topology(hardware, SHAPE, BatchShape(servers=4))
    topology = replace(topology, trainer_gpus=tuple(range(processes)))
    program = trainer_program(plan(), topology, cpus)
    assert program.environment["OMP_NUM_THREADS"] == str(threads)


def read_back(run: RunPlan, listed: tuple[Program, ...]) -> ServerOptions:
    run.run_dir.mkdir(parents=True)
    run.supervisor_file.write_text(render_supervisor_config(run, listed))
    options = ServerOptions()
    options.realize(["-c", str(run.supervisor_file)])
    return options


def test_supervisord_reads_what_was_meant(tmp_path: Path) -> None:
    run = plan(tmp_path, stop_seconds=7.0)
    listed = programs(run, "4xH100-80GB")
    options = read_back(run, listed)
    groups = {group.name: group.process_configs for group in options.process_group_configs}
    assert set(groups) == {"miner", "exit-listener"}
    by_name = {program.name: program for program in groups["miner"]}
    assert set(by_name) == {"inference", "trainer", "watchdog"}
    assert not by_name["trainer"].autostart
    assert by_name["inference"].environment["CUDA_VISIBLE_DEVICES"] == "0"
    for program in by_name.values():
        assert program.stopwaitsecs == 7
        assert program.stopasgroup
        assert program.killasgroup
        assert (program.stdout_logfile, program.stdout_logfile_maxbytes) == ("/dev/fd/1", 0)
        assert program.redirect_stderr
        assert program.uid is None


def test_awkward_words_survive(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()  # the socket's
    run = plan(tmp_path, run_dir=tmp_path / "task-50%/.run-r%(x)s")
    variables = {"SHARE": "50% of \\ all", "SAID": "it's so, really", "GPUS": "0,1"}
    words = ("tool", "--json", '{"a": "50%"}', "it's", "%(ENV_HOME)s", "")
    options = read_back(run, (Program("odd", words, variables),))
    (program,) = next(g for g in options.process_group_configs if g.name == "miner").process_configs
    assert program.environment == variables
    assert tuple(shlex.split(program.command)) == words
    assert (options.logfile, options.childlogdir) == (
        str(run.run_dir / "supervisord.log"),
        str(run.run_dir),
    )


@pytest.mark.parametrize(
    ("word", "value"), [("a ; b", ""), ("a # b", ""), ("a\nb", ""), ("x", 'a "b"')]
)
def test_what_ini_syntax_would_cut_is_refused(word: str, value: str) -> None:
    with pytest.raises(Failure, match=r"cannot be in supervisord.conf"):
        render_supervisor_config(plan(), [Program("odd", (word,), {"SAID": value})])
