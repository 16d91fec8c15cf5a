"""Several processes as one program: statuses, signals, and nobody left behind."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from miner.distributed.launch import free_port

LAUNCHER = """
import os, signal, subprocess, sys, time
from miner.distributed.launch import launch
{before}
status = launch(int(sys.argv[1]), [sys.executable, "-c", sys.argv[2]])
print(status)
"""

RANK = """
import os, pathlib, signal, sys, time
from miner.distributed.launch import launched
assert launched()
rank = int(os.environ["RANK"])
pathlib.Path(os.environ["PLACE"], f"pid-{rank}").write_text(str(os.getpid()))
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def start(body, count=2, before=""):
        launcher = LAUNCHER.format(before=before)
        process = subprocess.Popen(
            [sys.executable, "-c", launcher, str(count), RANK + body],
            env={**os.environ, "PLACE": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def pids(tmp_path, count=2):
    """Of the ranks, once all of them run."""
    files = [tmp_path / f"pid-{rank}" for rank in range(count)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def wait_for(condition):
    while not condition():
        time.sleep(0.02)


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("pass", 0),
        ("sys.exit(75 if rank == 1 else 0)", 75),
        ("sys.exit([1, 76][rank])", 76),
    ],
)
def test_the_status_is_that_of_the_rank_that_knows_why(start, body, status):
    assert int(start(body).communicate()[0]) == status


def test_a_rank_that_only_lost_its_peers_is_not_taken_for_the_cause(start):
    """The one that knows it takes longer to end."""
    before = "import miner.distributed.launch as l; l.LAST_WORDS_S, l.CAUSE_S = 0.2, 60"
    body = "time.sleep(3 * rank); sys.exit([1, 69][rank])"
    assert int(start(body, before=before).communicate()[0]) == 69


@pytest.mark.parametrize("status", [75, -signal.SIGKILL, -signal.SIGTERM])
def test_the_command_ends_as_its_ranks_did(status):
    code = f"""
import typer
from miner.cli import train
try:
    train._end_like({int(status)})
except typer.Exit as end:
    raise SystemExit(end.exit_code)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == status


def test_a_rank_that_is_killed_takes_the_others_along(start, tmp_path):
    process = start("time.sleep(600)")
    ranks = pids(tmp_path)
    os.kill(ranks[1], signal.SIGKILL)
    assert int(process.communicate()[0]) == -signal.SIGKILL
    assert gone(ranks[0])


COUNTS_REQUESTS = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
pathlib.Path(os.environ["PLACE"], f"ready-{rank}").touch()
while not asked: time.sleep(0.01)
time.sleep(1)
sys.exit(0 if len(asked) == 1 else 5)
"""


def test_a_request_to_end_reaches_every_rank_once_and_is_waited_for(start, tmp_path):
    process = start(COUNTS_REQUESTS)
    wait_for(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(2)))
    process.terminate()
    assert int(process.communicate()[0]) == 0


WHILE_STARTING = """
class Popen(subprocess.Popen):
    def __init__(self, command, env, **options):
        super().__init__(command, env=env, **options)
        while not os.path.exists(f"{{env['PLACE']}}/ready-{{env['RANK']}}"): time.sleep(0.01)
        if env["RANK"] == "{rank}":
            {strike}
subprocess.Popen = Popen
"""


@pytest.mark.parametrize("rank", range(3))
def test_a_request_to_end_while_ranks_are_started_reaches_all_of_them_once(start, rank):
    strike = "os.kill(os.getpid(), signal.SIGTERM)"
    process = start(COUNTS_REQUESTS, 3, WHILE_STARTING.format(rank=rank, strike=strike))
    assert int(process.communicate()[0]) == 0


def test_a_rank_that_cannot_be_started_takes_the_others_along(start, tmp_path):
    process = start(
        COUNTS_REQUESTS,
        before=WHILE_STARTING.format(rank=1, strike="raise OSError('no memory')")
        + "sys.excepthook = lambda *_: (print('failed', flush=True), time.sleep(600))",
    )
    assert process.stdout.readline() == "failed\n"
    assert gone(pids(tmp_path)[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_ranks_do_not_outlive_the_launcher(start, tmp_path):
    process = start("time.sleep(600)")
    ranks = pids(tmp_path)
    process.kill()
    wait_for(lambda: all(gone(pid) for pid in ranks))


def test_every_rank_knows_its_place(start, tmp_path):
    process = start(
        """
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
pathlib.Path(os.environ["PLACE"], f"env-{rank}").write_text(" ".join(os.environ[n] for n in names))
""",
        count=3,
    )
    assert int(process.communicate()[0]) == 0
    worlds = [(tmp_path / f"env-{rank}").read_text().split() for rank in range(3)]
    assert [world[:3] for world in worlds] == [[str(r), str(r), "3"] for r in range(3)]
    assert len({tuple(world[3:]) for world in worlds}) == 1


WAITING = """
from miner.distributed.launch import wait_until_prepared
wait_until_prepared()
pathlib.Path(os.environ["PLACE"], f"began-{rank}").touch()
"""

PREPARING = """
def prepare():
    place = os.environ["PLACE"]
    while not all(os.path.exists(place + name) for name in ("/pid-0", "/pid-1")):
        time.sleep(0.02)
    assert not os.path.exists(place + "/began-0")
    {more}
launch_now = launch
launch = lambda count, command: launch_now(count, command, prepare)
"""


def test_ranks_start_while_the_run_is_prepared_and_begin_after_it(start, tmp_path):
    process = start(WAITING, before=PREPARING.format(more=""))
    assert process.communicate()[0] == "0\n"
    assert (tmp_path / "began-0").exists()
    assert (tmp_path / "began-1").exists()


def test_ranks_of_a_run_that_cannot_be_prepared_end(start, tmp_path):
    process = start(WAITING, before=PREPARING.format(more="raise SystemExit(7)"))
    assert process.wait() == 7
    assert all(map(gone, pids(tmp_path)))
    assert not (tmp_path / "began-0").exists()


def test_ranks_share_the_containers_cpus(start):
    """Not the host's."""
    before = "os.environ.pop('OMP_NUM_THREADS', None)\n"
    before += "import miner.distributed.launch as l; l.usable_cpus = lambda: 7"
    body = "sys.exit(0 if os.environ['OMP_NUM_THREADS'] == '3' else 9)"
    assert int(start(body, before=before).communicate()[0]) == 0


def test_a_port_is_kept_for_a_server_that_starts_later():
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # a server that is started again too
        with socket.create_server(("", port)), socket.create_connection(("127.0.0.1", port)):
            pass
