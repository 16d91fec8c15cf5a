"""Processes by GPU: a pure function of the machine, the model and the batch.

Layouts: no GPU, one CPU process; one GPU, a trainer with vLLM colocated in sleep mode; more GPUs,
vLLM on some and a DeepSpeed trainer on the rest, or both on all. Of the candidates that fit, the
one with the most steps in the job's time by estimate is the plan (`run_cost`: steps of teachers or
of own games, as the job has them, and evaluations), and the plan keeps what the others would take;
adapters only where nothing fits full fine-tuning.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from entrypoint.batch import BatchShape
from entrypoint.hardware import GIB, Hardware
from entrypoint.layout import Choice, Topology, ZeroStage
from entrypoint.memory import (
    CONTEXT_BYTES,
    ENGINE_WORKSPACE_BYTES,
    ONLY_LEARNING,
    SLEEPING_ENGINE_BYTES,
    USABLE_SHARE,
    MemoryPlan,
    ModelShape,
    TrainerLoad,
    Tuning,
    kept_by_zero_3,
    largest_pass,
    trainer_activations,
    trainer_states,
)
from entrypoint.run_cost import RunCost, run_cost

FEWEST_LIVE_EPISODES = 8  # an engine that holds fewer does not pay for its GPU
MOST_LIVE_EPISODES = 256  # of an engine: its batches gain little from more, and CPUs play them
DEDICATED_SHARE = 0.90  # vLLM's share of a GPU that serves nothing else
UNSPREAD_SHARE = 0.90  # filled at most beside Adam's states without ZeRO: see `_filled_share`
NOT_SERVED = frozenset({"OlmoHybridForCausalLM"})
"""Architectures that vLLM 0.31 cannot load: its loader of their fused convolutions wants a number
of the part, which nothing gives it (vllm-project/vllm pull request 55858)."""
AS_FAST = 1.05  # the estimate is no more exact than this; the candidate named first is taken


@dataclass(frozen=True)
class _Candidate:
    layout: Literal["colocated", "split"]
    trainers: int
    engines: int
    tuning: Tuning
    zero_stage: ZeroStage
    served: bool = True

    @property
    def name(self) -> str:
        tuning = "full fine-tuning" if self.tuning == "full" else "LoRA"
        zero = f", ZeRO-{self.zero_stage}" if self.zero_stage else ""
        if not self.served:
            return f"trainers that generate on {self.trainers}, {tuning}{zero}"
        if self.layout == "colocated":
            return f"vLLM and trainer colocated on {self.trainers}, {tuning}{zero}"
        return f"vLLM on {self.engines}, trainer on {self.trainers}, {tuning}{zero}"


def plan_topology(
    hardware: Hardware, shape: ModelShape, batch: BatchShape, *, served: bool = True
) -> Topology:
    """Of the candidates that fit, the one with the most steps, with the reasons. Unequal GPUs count
    as the smallest.

    A model that fits no GPU plan is left to the CPU process, which at least publishes the base.

    Args:
        served: false where vLLM cannot load the model: the trainers' own generates, for which none
            of its weights may lie elsewhere.
    """
    longest = min(batch.episode_tokens, shape.context)
    batch = replace(batch, episode_tokens=longest, work=batch.work.within(longest))
    if not hardware.gpus:
        return _plan_cpu(hardware, shape, batch, [Choice("one CPU process", hardware.note)])
    refused: list[Choice] = []
    for candidates in _candidates(len(hardware.gpus), served=served):
        fitting: list[_Fitting] = []
        for candidate in candidates:
            plans = _fit(candidate, hardware, shape, batch)
            if isinstance(plans, str):
                refused.append(Choice(f"not {candidate.name}", plans))
                continue
            for plan in plans:
                alike = replace(plan, groups=batch.groups)
                cost = run_cost(batch, alike, shape, hardware)
                fitting.append(_Fitting(candidate, plan, cost, batch))
        if fitting:
            return _most_steps(fitting, refused)
    if batch.mounted and batch.work.held and longest > batch.held:
        fewer = replace(batch, episode_tokens=max(batch.held, longest // 2))
        plan = plan_topology(hardware, shape, fewer, served=served)
        if plan.layout != "cpu":
            why = f"with rows of {longest:,} tokens nothing fits: the longest are left out"
            return replace(plan, choices=(*plan.choices, Choice("shorter conversations", why)))
    return _plan_cpu(hardware, shape, batch, [*refused, Choice("one CPU process", "nothing fits")])


@dataclass(frozen=True)
class _Fitting:
    """A plan and its cost for as many groups as every other's, however many its steps have."""

    candidate: _Candidate
    plan: Topology
    cost: RunCost
    batch: BatchShape

    def __str__(self) -> str:
        step, batch, cost, parts = self.cost.step, self.batch, self.cost, []
        if batch.taught_share < 1:
            of = f"playing {step.rollout:.2g}, weights {step.weights:.2g}"
            of += f", learning {step.learning:.2g}"
            parts.append(f"{step.seconds:.3g} s for a step of {batch.groups} groups ({of})")
        if cost.taught is not None:
            parts.append(f"{cost.taught:.3g} s for a step of {batch.taught_rows} taught decisions")
        if cost.evaluation:
            parts.append(f"{cost.evaluation:.3g} s for {cost.episodes:,} held-out episodes")
        return f"about {', '.join(parts)}"


def _most_steps(fitting: Sequence[_Fitting], refused: Sequence[Choice]) -> Topology:
    """The plan with the most steps, with the times of the others: the better ZeRO stage of each."""
    least = min(each.cost.pace for each in fitting)
    best = next(each for each in fitting if each.cost.pace <= AS_FAST * least)
    by_gpus: dict[tuple[str, int], _Fitting] = {}
    for each in sorted(fitting, key=lambda each: each.cost.pace):
        by_gpus.setdefault((each.plan.layout, each.candidate.trainers), each)
    others = [
        Choice(f"not {each.candidate.name}", str(each))
        for each in by_gpus.values()
        if each.candidate != best.candidate
    ]
    return replace(best.plan, choices=(*refused, *others, *_reasons(best)))


def _candidates(count: int, *, served: bool) -> Iterator[tuple[_Candidate, ...]]:
    """All layouts for this many GPUs: full fine-tuning, then adapters.

    First comes, of what is as fast, a GPU for trainer and vLLM alike, in separate processes.
    Without vLLM each trainer's GPU holds all weights.
    """
    halves = sorted(range(1, count), key=lambda trainers: (abs(2 * trainers - count), -trainers))
    tunings: tuple[Tuning, ...] = ("full", "lora")
    for tuning in tunings:
        if not served:
            yield (_Candidate("colocated", count, count, tuning, _stages(count)[0], served=False),)
            continue
        yield (
            *(
                _Candidate("split", trainers, count - trainers, tuning, stage)
                for trainers in halves
                for stage in _stages(trainers)
            ),
            *(_Candidate("colocated", count, count, tuning, stage) for stage in _stages(count)),
        )


def _stages(trainers: int) -> tuple[ZeroStage, ...]:
    return (2, 3) if trainers > 1 else (0,)


def _fit(
    candidate: _Candidate, hardware: Hardware, shape: ModelShape, batch: BatchShape
) -> list[Topology] | str:
    """This candidate with the largest pass that fits, and where that is not the one that is wanted
    also with the largest one that recomputes activations; or the sentence why nothing fits."""
    total = min(gpu.memory for gpu in hardware.gpus)
    groups = -(-batch.groups // candidate.trainers) * candidate.trainers
    load = TrainerLoad(
        shape=shape,
        tuning=candidate.tuning,
        ranks=candidate.trainers,
        zero_stage=candidate.zero_stage,
        tokens=batch.longest_row,
        lora_rank=batch.lora_rank,
    )
    passes = []
    for checkpointing in (False, True):
        for tokens in _pass_sizes(batch):
            largest = largest_pass(tokens, batch.longest_row)
            filled = replace(load, tokens=largest, checkpointing=checkpointing)
            training = _training(candidate, filled, total)
            if training.fits:
                passes.append((tokens, checkpointing, training))
                break
        if passes and passes[0][0] == batch.pass_tokens:
            break
    live, rollout = _rollout(candidate, load, replace(batch, groups=groups), total)
    if not passes:
        return _shortage(training)
    if not rollout.fits:
        return _shortage(rollout)
    colocated = candidate.layout == "colocated"
    gpus = tuple(gpu.index for gpu in hardware.gpus)
    engine_bytes = sum(size for name, size in rollout.items if name in _ENGINE_ITEMS)
    share = _round_up(engine_bytes / total) if colocated else DEDICATED_SHARE
    least_bytes = shape.parameters * 2 + batch.episode_tokens * shape.kv_bytes_per_token
    least_bytes += ENGINE_WORKSPACE_BYTES // 2
    return [
        Topology(
            layout=candidate.layout,
            inference_gpus=gpus[: candidate.engines],
            trainer_gpus=gpus if colocated else gpus[candidate.engines :],
            tuning=candidate.tuning,
            zero_stage=candidate.zero_stage,
            dtype="bfloat16",
            groups=groups,
            pass_tokens=pass_tokens,
            checkpointing=checkpointing,
            episode_tokens=batch.episode_tokens,
            live_episodes=live,
            memory_share=share if candidate.served else 0.0,
            least_memory_share=_round_up(least_bytes / total),
            memory=(training, rollout),
            choices=(),
        )
        for pass_tokens, checkpointing, training in passes
    ]


_ENGINE_ITEMS = ("engine weights", "KV cache", "engine workspace")
_OWN_ITEMS = ("merged weights", "KV cache", "forward pass")


def _pass_sizes(batch: BatchShape) -> list[int]:
    """The pass that is wanted and halves of it, while the longest row fits."""
    sizes = [batch.pass_tokens]
    while sizes[-1] // 2 >= batch.longest_row:
        sizes.append(sizes[-1] // 2)
    return sizes


def _training(candidate: _Candidate, load: TrainerLoad, total: int) -> MemoryPlan:
    items = (*trainer_states(load), *trainer_activations(load), ("CUDA context", CONTEXT_BYTES))
    if candidate.layout == "colocated" and candidate.served:
        items = (*items, ("vLLM asleep", SLEEPING_ENGINE_BYTES))
    return MemoryPlan("trainer GPU, backward pass", total, items)


def _rollout(
    candidate: _Candidate, load: TrainerLoad, batch: BatchShape, total: int
) -> tuple[int, MemoryPlan]:
    """Live episodes of one engine and its GPU's memory while they are played.

    A trainer that generates merges its adapters into copies of the weights for held-out games.
    """
    engine = load.shape.parameters * 2 if candidate.served or candidate.tuning == "lora" else 0
    resident: tuple[tuple[str, int], ...] = ()
    limit = total * DEDICATED_SHARE
    moment = "inference GPU, rollout"
    if candidate.layout == "colocated":
        kept = (
            *(item for item in trainer_states(load) if item[0] not in ONLY_LEARNING),
            *kept_by_zero_3(load),
        )
        if load.zero_stage == 3:  # vLLM starts before DeepSpeed has spread the model
            whole = (("weights, not spread yet", load.shape.parameters * load.compute_bytes),)
            kept = max(kept, whole, key=lambda items: sum(size for _, size in items))
        resident = (*kept, ("CUDA context", CONTEXT_BYTES))
        limit = total * _filled_share(candidate)
        moment = "shared GPU, rollout"
    taken = sum(size for _, size in resident) + engine + ENGINE_WORKSPACE_BYTES
    episode = load.shape.episode_bytes(batch.held, served=candidate.served)
    per_engine = min(MOST_LIVE_EPISODES, -(-batch.wanted_live // candidate.engines))
    room = int((limit - taken) // episode)
    live = min(per_engine, max(room, min(FEWEST_LIVE_EPISODES, per_engine)))
    longest = load.shape.episode_bytes(batch.episode_tokens, served=candidate.served)
    cache = max(live * episode, longest)  # vLLM refuses less than one longest episode
    sizes = (engine, cache, ENGINE_WORKSPACE_BYTES)
    names = _ENGINE_ITEMS if candidate.served else _OWN_ITEMS
    items = (*resident, *zip(names, sizes, strict=True))
    return live, MemoryPlan(moment, total, items)


def _filled_share(candidate: _Candidate) -> float:
    """Share of a shared GPU that the KV cache may fill.

    torch allocates Adam's states after the first step's activations, in many parts: segments that
    it cannot return to vLLM hold more than tensors do. ZeRO's are few and large, adapters' small.
    A trainer's own cache grows token by token, in as many.
    """
    alone = candidate.tuning == "full" and not candidate.zero_stage
    in_fragments = alone or not candidate.served
    return UNSPREAD_SHARE if in_fragments else USABLE_SHARE


def _plan_cpu(
    hardware: Hardware, shape: ModelShape, batch: BatchShape, choices: list[Choice]
) -> Topology:
    """One process with transformers sampling; with the smallest pass even if memory is short."""
    plans = []
    for size in _pass_sizes(batch):
        load = TrainerLoad(
            *(shape, "full", 1, 0, largest_pass(size, batch.longest_row)),
            compute_bytes=4,
            checkpointing=False,
            fused_head=False,
        )
        items = (*trainer_states(load), *trainer_activations(load))
        plans.append((size, MemoryPlan("memory, backward pass", hardware.memory, items)))
    pass_tokens, memory = next((try_ for try_ in plans if try_[1].fits), plans[-1])
    fit = f"largest that fits {hardware.memory / GIB:.0f} GiB, of what is wanted and its halves"
    shortage = f"{_shortage(memory)}; it is tried all the same, the base model is published first"
    return Topology(
        layout="cpu",
        trainer_gpus=(),
        inference_gpus=(),
        tuning="full",
        zero_stage=0,
        dtype="float32",
        groups=batch.groups,
        pass_tokens=pass_tokens,
        checkpointing=False,
        episode_tokens=batch.episode_tokens,
        live_episodes=batch.wanted_live,
        memory_share=0.0,
        least_memory_share=0.0,
        memory=(memory,),
        choices=(*choices, Choice(_passes(pass_tokens), fit if memory.fits else shortage)),
    )


def _reasons(best: _Fitting) -> Iterator[Choice]:
    candidate, plan = best.candidate, best.plan
    fullest = max(plan.memory, key=lambda moment: moment.used / moment.total)
    room = f"{fullest.moment} takes {_gib(fullest.used)} of {_gib(fullest.total)} GiB"
    most = f"the most steps in the job's time, within {AS_FAST - 1:.0%}"
    yield Choice(candidate.name, f"{most}: {best}; {room}")
    if plan.layout == "colocated" and candidate.served:
        why = "vLLM and trainer take turns on the same memory; one sleep per rollout"
        yield Choice(f"sleep mode, vLLM's share {plan.memory_share:.2f}", why)
    yield Choice(_passes(plan.pass_tokens), "largest that fits, of what is wanted and its halves")
    if plan.checkpointing:
        more = "a half" if candidate.tuning == "lora" else "a third"
        why = f"activations are recomputed, {more} more work: without, no pass fits, or a small one"
        why += " that costs more"
        yield Choice("gradient checkpointing", why)
    yield Choice(
        f"{plan.live_episodes} live episodes per engine", "KV cache and places to play allow them"
    )
    if candidate.served:
        yield Choice("bfloat16", "the same dtype in vLLM and trainer keeps their logprobs together")
    else:
        why = "it cannot load this architecture: the trainers' own models generate, slowly"
        yield Choice("no vLLM", why)


def _shortage(plan: MemoryPlan) -> str:
    items = ", ".join(f"{name} {_gib(size)}" for name, size in plan.items)
    return f"{plan.moment} needs {_gib(plan.used)} of {_gib(plan.total)} GiB ({items})"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _passes(tokens: int) -> str:
    return f"passes of {tokens:,} tokens"


def _round_up(share: float) -> float:
    return math.ceil(share * 100) / 100
