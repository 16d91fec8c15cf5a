"""Checks before the run: one clear line each, and for what fails the way out.

Invariant: only what makes a published model impossible fails; everything else warns, because a
container that ends here publishes nothing.
"""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from entrypoint import forward_compatibility
from entrypoint.exit_status import ExitStatus
from entrypoint.hardware import GIB, UNUSABLE, Hardware
from entrypoint.model_facts import ModelFacts
from entrypoint.probes import health_url, wait_for_answers
from miner.config.channel_facts import FACTS

OLDEST_CAPABILITY, NEWEST_CAPABILITY = (7, 5), (12, 0)
BFLOAT16_CAPABILITY = (8, 0)
MIB = GIB // 1024
SHARED_MEMORY_PER_GPU = GIB  # NCCL and data loaders; docker's default is 64 MiB
CHECKPOINT_BYTES = 16  # per parameter: weights twice, master copy and two moments
SERVER_TIMEOUT = 10.0  # seconds; a server may be busy with another caller's episode
SERVER_POLL = 1.0


@dataclass(frozen=True)
class Check:
    """One line. `status` is the exit status if `level` is "fail"."""

    level: Literal["ok", "warn", "fail"]
    name: str
    message: str
    status: ExitStatus = ExitStatus.OK

    def __str__(self) -> str:
        return f"{self.level:<4} {self.name}: {self.message}"


def usable(hardware: Hardware, libraries: Path = forward_compatibility.LIBRARIES) -> Hardware:
    """`hardware`, without its GPUs where this image cannot use them.

    An older driver is usable with CUDA's forward-compatibility `libraries`, where CUDA starts so.

    The CPU process, too slow to learn much, still publishes the base model; a container that ends
    here publishes nothing.
    """
    if reason := _unsupported_gpu(hardware):
        return hardware.without_gpus(reason)
    if not hardware.gpus or forward_compatibility.is_new_enough(hardware.driver):
        return hardware
    if error := forward_compatibility.start_error(libraries):
        return hardware.without_gpus(
            f"{UNUSABLE}: driver {hardware.driver} is older than "
            f"{forward_compatibility.OLDEST_DRIVER}, which CUDA 13 needs, and {error}: "
            "update the host's NVIDIA driver"
        )
    return replace(hardware, cuda_libraries=libraries)


def check_gpus(hardware: Hardware) -> list[Check]:
    """Driver and compute capability of the GPUs that are going to be used.

    Args:
        hardware: as `usable` leaves it.
    """
    if not hardware.gpus:
        level: Literal["ok", "warn"] = "warn" if UNUSABLE in hardware.note else "ok"
        return [Check(level, "gpu", f"none ({hardware.note}): one CPU process")]
    names = ", ".join(sorted({gpu.name for gpu in hardware.gpus}))
    lowest = min(gpu.capability for gpu in hardware.gpus)
    text = f"{len(hardware.gpus)} x {names}, compute capability {lowest[0]}.{lowest[1]}"
    driver = f"{hardware.driver}"
    if hardware.cuda_libraries:
        driver += f", with the forward-compatibility libraries of {hardware.cuda_libraries}"
    checks = [Check("ok", "driver", driver), Check("ok", "gpu", text)]
    if lowest < BFLOAT16_CAPABILITY:
        checks[1] = Check("warn", "gpu", f"{text}: bfloat16 is emulated below 8.0, slow")
    if UNUSABLE in hardware.note:
        checks.append(Check("warn", "gpu", hardware.note))
    return checks


def _unsupported_gpu(hardware: Hardware) -> str:
    for gpu in hardware.gpus:
        if not OLDEST_CAPABILITY <= gpu.capability <= NEWEST_CAPABILITY:
            shown = f"{gpu.capability[0]}.{gpu.capability[1]}"
            return (
                f"{UNUSABLE}: {gpu.name} has compute capability {shown}, this image runs on 7.5 "
                "to 12.0: use other GPUs"
            )
    return ""


def check_shared_memory(hardware: Hardware) -> Check:
    """/dev/shm, which several GPU processes talk through."""
    needed = SHARED_MEMORY_PER_GPU * len(hardware.gpus)
    size = f"{hardware.shared_memory / GIB:.1f} GiB"
    if hardware.shared_memory < needed:
        advice = f"at least {needed / GIB:.0f} GiB wanted, start with --shm-size"
        return Check("warn", "shared memory", f"{size}; {advice}")
    return Check("ok", "shared memory", size)


def check_model(facts: ModelFacts) -> list[Check]:
    """Check the base model and its tokenizer."""
    counted = "" if facts.counted else "about "
    text = (
        f"{facts.architecture}, {counted}{facts.shape.parameters:,} parameters, {facts.dtype}, "
        f"{_size(facts.weight_bytes)}"
    )
    gaps = [Check("warn", "model", gap) for gap in facts.gaps]
    return [
        Check("ok", "model", text),
        *(gaps or [Check("ok", "tokenizer", "chat template found")]),
    ]


def check_output(output_dir: Path) -> Check:
    """Check that folders and files can be written beside the output folder."""
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output_dir.parent, prefix=".writable-"):
            pass
    except OSError as error:
        message = (
            f"{output_dir.parent} cannot be written ({error.strerror}): mount it read-write and "
            "owned by the container's user, who has no capability to override permissions"
        )
        return Check("fail", "output", message, ExitStatus.OUTPUT)
    if output_dir.is_mount():
        message = f"{output_dir} is a mount point: mount its parent, it is replaced as a whole"
        return Check("fail", "output", message, ExitStatus.OUTPUT)
    return Check("ok", "output", str(output_dir))


def check_disk(
    folder: Path, facts: ModelFacts, free: int | None = None, *, published: bool = False
) -> Check:
    """Room for the published model and its successor, and for what a run can do without.

    Args:
        folder: exists, on the file system of the output.
        free: bytes; looked up by default.
        published: a model lies there already, of an earlier life of this container.
    """
    free = shutil.disk_usage(folder).free if free is None else free
    needed = (1 if published else 2) * facts.weight_bytes
    best = 2 * facts.weight_bytes  # the one kept, and the next while it is written
    checkpoints = 2 * CHECKPOINT_BYTES * facts.shape.parameters
    has = f"{_size(free)} free at {folder}"
    if free < facts.weight_bytes and not published:
        message = f"{has}, the model needs {_size(facts.weight_bytes)}: free space or mount more"
        return Check("fail", "disk", message, ExitStatus.DISK)
    if free < needed:
        message = (
            f"{has}, {_size(needed)} are needed to replace the published model: the one that comes "
            "first is likely to stay"
        )
        return Check("warn", "disk", message)
    if free < needed + best + checkpoints:
        message = (
            f"{has}, full training may use {_size(needed + best + checkpoints)}: checkpoints "
            "that do not fit are left out, and a run that is killed starts from the base again"
        )
        return Check("warn", "disk", message)
    return Check("ok", "disk", has)


def check_servers(
    servers: Sequence[str],
    channel: str,
    *,
    seconds: float,
    stop: threading.Event,
    every: float = SERVER_POLL,
) -> Check:
    """Wait until every environment server answers, at most `seconds`.

    Where none does the run begins all the same: the trainer publishes the base, and the watchdog
    starts it again once a server answers.
    """
    name = "environment servers"
    if not FACTS[channel].asks_servers:
        return Check("ok", name, f"not used (channel {channel})")
    advice = "check ENVIRONMENT_SERVER_URLS and the network, or --set environment.channel=builtin"
    if not servers:
        return Check("fail", name, f"none given: {advice}", ExitStatus.ENVIRONMENT)
    urls = [health_url(server) for server in servers]
    silent = wait_for_answers(
        urls, len(urls), timeout=SERVER_TIMEOUT, seconds=seconds, every=every, stop=stop
    )
    answering = f"{len(servers) - len(silent)} of {len(servers)} answer"
    if not silent:
        return Check("ok", name, answering)
    text = f"{answering} after {seconds:.0f} s ({next(iter(silent.values()))})"
    if len(silent) < len(servers):
        return Check("warn", name, f"{text}; continuing with the others")
    fate = "the base model is published, and training waits for one that answers"
    return Check("warn", name, f"{text}: {fate}; {advice}")


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / MIB:.1f} MiB"
