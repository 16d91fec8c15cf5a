"""Times at which the trainer, and everything, has to end; all counted from the container's start.

The kill comes at the end of the time given. Before it, in this order: the trainer has planned its
own end and published; it is asked to end; it is stopped; the published model is loaded again.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.job import Job
from entrypoint.layout import Topology
from entrypoint.model_facts import ModelFacts
from entrypoint.paths import Paths
from entrypoint.probes import health_url
from entrypoint.run_plan import RunPlan
from entrypoint.trainer_settings import INFERENCE_PORT
from miner.config.contract import FIRST_FORMAT_DTYPE, SERVING_DTYPE

LOAD_BYTES_PER_SECOND = 400e6  # checking a model that was written minutes ago
SHORTEST_RESERVE = 30.0
LARGEST_RESERVE_SHARE = 0.1  # of the time given
GRACE_SECONDS = 10.0  # Docker's default between SIGTERM and SIGKILL
STOP_SHARE = 0.5  # of the grace period is for the programs, the rest for the exit status
STALL_SECONDS = {"cpu": 3600.0, "colocated": 900.0, "split": 900.0}


def plan_run(
    job: Job,
    paths: Paths,
    topology: Topology,
    facts: ModelFacts,
    started_at: float,
    environ: Mapping[str, str],
    *,
    by_hand: bool = False,
    adapter_learning_rate: float | None = None,
    asks_servers: bool = True,
) -> RunPlan:
    """Files, limits and times of the run. Raises: `Failure` (ARGUMENTS).

    Args:
        asks_servers: true if the trainer plays on the job's environment servers; where it plays in
            its own process, they are not waited for.
    """
    reserve = SHORTEST_RESERVE + 2 * facts.weight_bytes / LOAD_BYTES_PER_SECOND
    reserve = min(reserve, LARGEST_RESERVE_SHARE * job.seconds)
    kill_at = started_at + job.seconds
    served = topology.layout == "split"
    return RunPlan(
        run_dir=paths.run_dir,
        output_dir=paths.output_dir,
        socket=Path(f"/tmp/miner-{os.getpid()}.sock"),
        started_at=started_at,
        trainer_ends_at=kill_at - reserve,
        ends_at=kill_at - reserve / 2,
        kill_at=kill_at,
        by_hand=by_hand,
        adapter_learning_rate=adapter_learning_rate,
        least_memory_share=topology.least_memory_share,
        served_dtype=SERVING_DTYPE if job.duels else FIRST_FORMAT_DTYPE,
        servers=job.servers if asks_servers else (),
        inference_health=health_url(f"http://127.0.0.1:{INFERENCE_PORT}") if served else None,
        stop_seconds=STOP_SHARE * grace_seconds(environ),
        stall_seconds=STALL_SECONDS[topology.layout],
    )


def grace_seconds(environ: Mapping[str, str]) -> float:
    """MINER_GRACE_SECONDS: what the container is stopped with (`docker stop --time`)."""
    text = environ.get("MINER_GRACE_SECONDS", str(GRACE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 2 <= seconds <= 3600:
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"MINER_GRACE_SECONDS is {text!r}, expected seconds from 2 to 3600",
        )
    return seconds
