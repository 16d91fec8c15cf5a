"""Who runs where: a pure function of the machine, the model and the batch.

Layouts: no GPU, one CPU process; one GPU, a trainer with vLLM colocated in sleep mode; more GPUs,
vLLM on some and a DeepSpeed trainer on the rest, or both on all. Candidates are tried from the
most faithful (full fine-tuning, processes of their own) to the leanest; the first that fits is the
plan, and the plan keeps why those before it were refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from entrypoint.hardware import GIB, Hardware
from entrypoint.memory import (
    CONTEXT_BYTES,
    ENGINE_WORKSPACE_BYTES,
    SLEEPING_ENGINE_BYTES,
    USABLE_SHARE,
    MemoryPlan,
    ModelShape,
    TrainerLoad,
    Tuning,
    trainer_activations,
    trainer_states,
)

Layout = Literal["cpu", "colocated", "split"]
ZeroStage = Literal[0, 2, 3]

EPISODES_PER_SERVER = 48  # an environment server deadlocks at about 100 (CONTRACT 4)
FEWEST_LIVE_EPISODES = 8  # an engine that holds fewer is not worth its GPU
DEDICATED_SHARE = 0.90  # vLLM's share of a GPU that serves nothing else
CPU_MICRO_BATCHES = (32, 16, 8, 4, 2, 1)
GPU_MICRO_BATCHES = (8, 4, 2, 1)


@dataclass(frozen=True)
class BatchShape:
    """What one optimizer step plays, the longest episode in tokens, the environment servers."""

    groups: int = 16
    group_size: int = 8
    episode_tokens: int = 4096
    servers: int = 1


@dataclass(frozen=True)
class Choice:
    """One decision of the plan and its reason."""

    what: str
    why: str


@dataclass(frozen=True)
class Topology:
    """The plan: which GPUs do what, how the trainer holds the model, and the memory it takes.

    Attributes:
        inference_gpus: of vLLM (data parallel); equal to `trainer_gpus` when colocated.
        zero_stage: DeepSpeed's, 0 without DeepSpeed.
        groups: groups of a step; a multiple of the trainer's processes.
        micro_batch: episodes per forward and backward pass of one process.
        live_episodes: episodes that one engine (or the CPU process) plays at once.
        memory_share: vLLM's share of its GPU; 0 without vLLM.
        memory: the fullest moments, one plan each.
    """

    layout: Layout
    trainer_gpus: tuple[int, ...]
    inference_gpus: tuple[int, ...]
    tuning: Tuning
    zero_stage: ZeroStage
    dtype: Literal["float32", "bfloat16"]
    groups: int
    micro_batch: int
    episode_tokens: int
    live_episodes: int
    memory_share: float
    sleep_mode: bool
    memory: tuple[MemoryPlan, ...]
    choices: tuple[Choice, ...]

    @property
    def processes(self) -> int:
        """Trainer processes."""
        return max(1, len(self.trainer_gpus))


@dataclass(frozen=True)
class _Candidate:
    layout: Literal["colocated", "split"]
    trainers: int
    engines: int
    tuning: Tuning
    zero_stage: ZeroStage

    @property
    def name(self) -> str:
        tuning = "full fine-tuning" if self.tuning == "full" else "LoRA"
        zero = f", ZeRO-{self.zero_stage}" if self.zero_stage else ""
        if self.layout == "colocated":
            return f"vLLM and trainer colocated on {self.trainers}, {tuning}{zero}"
        return f"vLLM on {self.engines}, trainer on {self.trainers}, {tuning}{zero}"


def plan_topology(hardware: Hardware, shape: ModelShape, batch: BatchShape) -> Topology:
    """The first candidate that fits, with the reasons. GPUs of unequal size count as the smallest.

    A model that fits no GPU plan is left to the CPU process, which at least publishes the base.
    """
    batch = replace(batch, episode_tokens=min(batch.episode_tokens, shape.context))
    if not hardware.gpus:
        return _plan_cpu(hardware, shape, batch, [Choice("one CPU process", hardware.note)])
    refused: list[Choice] = []
    for candidate in _candidates(len(hardware.gpus)):
        plan = _fit(candidate, hardware, shape, batch)
        if isinstance(plan, Topology):
            return replace(plan, choices=(*refused, *_reasons(candidate, plan)))
        refused.append(Choice(f"not {candidate.name}", plan))
    return _plan_cpu(hardware, shape, batch, [*refused, Choice("one CPU process", "nothing fits")])


def _candidates(count: int) -> Iterator[_Candidate]:
    if count == 1:
        yield _Candidate("colocated", 1, 1, "full", 0)
        yield _Candidate("colocated", 1, 1, "lora", 0)
        return
    trainers = 1 << ((count - 1).bit_length() - 1)  # largest power of two that leaves a GPU
    engines = count - trainers
    spread: ZeroStage = 2 if trainers > 1 else 0
    yield _Candidate("split", trainers, engines, "full", spread)
    if trainers > 1:
        yield _Candidate("split", trainers, engines, "full", 3)
    yield _Candidate("colocated", count, count, "full", 2)
    yield _Candidate("colocated", count, count, "full", 3)
    yield _Candidate("split", trainers, engines, "lora", spread)
    yield _Candidate("colocated", count, count, "lora", 3)


def _fit(
    candidate: _Candidate, hardware: Hardware, shape: ModelShape, batch: BatchShape
) -> Topology | str:
    """This candidate at the largest micro-batch that fits, or the sentence why nothing fits."""
    total = min(gpu.memory for gpu in hardware.gpus)
    colocated = candidate.layout == "colocated"
    groups = -(-batch.groups // candidate.trainers) * candidate.trainers
    share = groups * batch.group_size // candidate.trainers
    sizes = [size for size in GPU_MICRO_BATCHES if share % size == 0]
    plans = [(size, _training(candidate, shape, batch, size, total)) for size in sizes]
    micro_batch, training = next(((s, plan) for s, plan in plans if plan.fits), plans[-1])
    live, rollout = _rollout(candidate, shape, batch, groups, total)
    for plan in (training, rollout):
        if not plan.fits:
            return _shortage(plan)
    gpus = tuple(gpu.index for gpu in hardware.gpus)
    engine_bytes = sum(size for name, size in rollout.items if name in _ENGINE_ITEMS)
    return Topology(
        layout=candidate.layout,
        inference_gpus=gpus[: candidate.engines],
        trainer_gpus=gpus if colocated else gpus[candidate.engines :],
        tuning=candidate.tuning,
        zero_stage=candidate.zero_stage,
        dtype="bfloat16",
        groups=groups,
        micro_batch=micro_batch,
        episode_tokens=batch.episode_tokens,
        live_episodes=live,
        memory_share=_round_up(engine_bytes / total) if colocated else DEDICATED_SHARE,
        sleep_mode=colocated,
        memory=(training, rollout),
        choices=(),
    )


_ENGINE_ITEMS = ("engine weights", "KV cache", "engine workspace")


def _training(
    candidate: _Candidate, shape: ModelShape, batch: BatchShape, micro_batch: int, total: int
) -> MemoryPlan:
    load = _load(candidate, shape, batch, micro_batch)
    items = (
        *trainer_states(load),
        ("activations", trainer_activations(load)),
        ("CUDA context", CONTEXT_BYTES),
    )
    if candidate.layout == "colocated":
        items = (*items, ("vLLM asleep", SLEEPING_ENGINE_BYTES))
    return MemoryPlan("trainer GPU, backward pass", total, items)


def _rollout(
    candidate: _Candidate, shape: ModelShape, batch: BatchShape, groups: int, total: int
) -> tuple[int, MemoryPlan]:
    """Live episodes of one engine and its GPU's memory while they are played."""
    engine = shape.parameters * 2
    resident: tuple[tuple[str, int], ...] = ()
    limit = total * DEDICATED_SHARE
    moment = "inference GPU, rollout"
    if candidate.layout == "colocated":
        states = trainer_states(_load(candidate, shape, batch, 1))
        kept = tuple(item for item in states if item[0] != "gradients")
        resident = (*kept, ("CUDA context", CONTEXT_BYTES))
        limit = total * USABLE_SHARE
        moment = "shared GPU, rollout"
    taken = sum(size for _, size in resident) + engine + ENGINE_WORKSPACE_BYTES
    episode = batch.episode_tokens * shape.kv_bytes_per_token
    wanted = min(groups * batch.group_size, EPISODES_PER_SERVER * max(1, batch.servers))
    per_engine = -(-wanted // candidate.engines)
    room = int((limit - taken) // episode)
    live = min(per_engine, max(room, min(FEWEST_LIVE_EPISODES, per_engine)))
    sizes = (engine, live * episode, ENGINE_WORKSPACE_BYTES)
    items = (*resident, *zip(_ENGINE_ITEMS, sizes, strict=True))
    return live, MemoryPlan(moment, total, items)


def _load(
    candidate: _Candidate, shape: ModelShape, batch: BatchShape, micro_batch: int
) -> TrainerLoad:
    return TrainerLoad(
        shape=shape,
        tuning=candidate.tuning,
        ranks=candidate.trainers,
        zero_stage=candidate.zero_stage,
        micro_batch=micro_batch,
        episode_tokens=batch.episode_tokens,
    )


def _plan_cpu(
    hardware: Hardware, shape: ModelShape, batch: BatchShape, choices: list[Choice]
) -> Topology:
    """One process with transformers sampling; at micro-batch 1 it runs even if memory is short."""
    episodes = batch.groups * batch.group_size
    sizes = [size for size in CPU_MICRO_BATCHES if episodes % size == 0]
    plans = []
    for size in sizes:
        load = TrainerLoad(shape, "full", 1, 0, size, batch.episode_tokens, 4, checkpointing=False)
        items = (*trainer_states(load), ("activations", trainer_activations(load)))
        plans.append((size, MemoryPlan("memory, backward pass", hardware.memory, items)))
    micro_batch, memory = next(((s, plan) for s, plan in plans if plan.fits), plans[-1])
    fit = f"largest of {_listed(sizes)} that fits {hardware.memory / GIB:.0f} GiB"
    shortage = f"{_shortage(memory)}; it is tried all the same, the base model is published first"
    return Topology(
        layout="cpu",
        trainer_gpus=(),
        inference_gpus=(),
        tuning="full",
        zero_stage=0,
        dtype="float32",
        groups=batch.groups,
        micro_batch=micro_batch,
        episode_tokens=batch.episode_tokens,
        live_episodes=min(episodes, EPISODES_PER_SERVER * max(1, batch.servers)),
        memory_share=0.0,
        sleep_mode=False,
        memory=(memory,),
        choices=(*choices, Choice(f"micro-batch {micro_batch}", fit if memory.fits else shortage)),
    )


def _reasons(candidate: _Candidate, plan: Topology) -> Iterator[Choice]:
    fullest = max(plan.memory, key=lambda moment: moment.used / moment.total)
    room = f"{fullest.moment} takes {_gib(fullest.used)} of {_gib(fullest.total)} GiB"
    yield Choice(candidate.name, f"first of the candidates that fits: {room}")
    if plan.layout == "split":
        why = "the largest power of two that leaves a GPU for vLLM, so that batches divide evenly"
        yield Choice(f"{candidate.trainers} trainer GPU(s)", why)
    else:
        why = "vLLM and trainer take turns on the same memory; one sleep per rollout"
        yield Choice(f"sleep mode, vLLM's share {plan.memory_share:.2f}", why)
    yield Choice(
        f"micro-batch {plan.micro_batch}", f"largest of {_listed(GPU_MICRO_BATCHES)} that fits"
    )
    yield Choice(
        f"{plan.live_episodes} live episodes per engine", "KV cache and servers allow them"
    )
    yield Choice("bfloat16", "the same dtype in vLLM and trainer keeps their logprobs together")


def _shortage(plan: MemoryPlan) -> str:
    items = ", ".join(f"{name} {_gib(size)}" for name, size in plan.items)
    return f"{plan.moment} needs {_gib(plan.used)} of {_gib(plan.total)} GiB ({items})"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _listed(sizes: list[int] | tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in sizes)


def _round_up(share: float) -> float:
    return math.ceil(share * 100) / 100
