"""The command line of every program of a run."""

import sys
from pathlib import Path

from entrypoint.layout import Topology
from entrypoint.run_plan import INFERENCE, TRAINER, RunPlan
from entrypoint.supervisor_config import Program, watchdog_program
from entrypoint.trainer_settings import INFERENCE_PORT

CODE = Path(__file__).resolve().parents[1]
ONE_HOST = {"VLLM_HOST_IP": "127.0.0.1"}
"""Address of vLLM's own process groups: it would ask a default route, which may be missing."""

MOST_THREADS = 8
"""Of a trainer process's libraries; more gain little beside a GPU."""


def plan_programs(
    plan: RunPlan, topology: Topology, model_dir: Path, cpus: int
) -> tuple[Program, ...]:
    """Inference where it has dedicated GPUs, the trainer, the watchdog."""
    programs = (trainer_program(plan, topology, cpus), watchdog_program(plan))
    if topology.layout == "split":
        return (inference_program(plan, topology, model_dir), *programs)
    return programs


def trainer_program(plan: RunPlan, topology: Topology, cpus: int) -> Program:
    """The trainer; with several GPUs it starts one process for each.

    Args:
        cpus: that the container may use; libraries would take one thread for each of the host's.
    """
    processes: tuple[str, ...] = ()
    if topology.processes > 1:
        processes = ("--processes", str(topology.processes))
    threads = max(1, min(MOST_THREADS, cpus // topology.processes))
    train = ("-m", "miner", "train", "--config", str(plan.settings_file))
    return Program(
        name=TRAINER,
        command=(sys.executable, *train, *processes),
        environment={
            **_visible(topology.trainer_gpus),
            **ONE_HOST,
            "OMP_NUM_THREADS": str(threads),
        },
        starts_itself=False,
    )


def inference_program(plan: RunPlan, topology: Topology, model_dir: Path) -> Program:
    """One vLLM server, all of whose processes end together."""
    kill_after = plan.stop_seconds / 2  # supervisord's own SIGKILL would reach only the wrapper
    whole = (sys.executable, "-m", "entrypoint.inference", "--kill-after", f"{kill_after:g}")
    return Program(
        name=INFERENCE,
        command=(*whole, *vllm_command(topology, model_dir)),
        environment={
            **_visible(topology.inference_gpus),
            **ONE_HOST,
            "VLLM_SERVER_DEV_MODE": "1",
            "PYTHONPATH": str(CODE),  # its workers load the miner's weight transfer
        },
        restarts=True,
    )


def vllm_command(topology: Topology, model_dir: Path) -> tuple[str, ...]:
    """`vllm serve`, data parallel over its GPUs; token ids in, token ids and logprobs out."""
    flags = {
        "--host": "127.0.0.1",
        "--port": str(INFERENCE_PORT),
        "--dtype": topology.dtype,
        "--data-parallel-size": str(len(topology.inference_gpus)),
        "--max-model-len": str(topology.episode_tokens),
        "--max-num-seqs": str(topology.live_episodes),
        "--gpu-memory-utilization": f"{topology.memory_share:.2f}",
        "--weight-transfer-config": '{"backend":"file"}',
        "--worker-extension-cls": "miner.inference.vllm.worker.WeightsByFile",
        "--logprobs-mode": "processed_logprobs",
        "--max-logprobs": "-1",
    }
    words = [word for flag in flags.items() for word in flag]
    switches = ("--enable-prompt-tokens-details", "--language-model-only")
    return ("vllm", "serve", str(model_dir), *words, *switches)


def _visible(gpus: tuple[int, ...]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES in NVML's order of devices."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in gpus)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible} if gpus else visible
