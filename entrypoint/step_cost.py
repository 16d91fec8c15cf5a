"""Estimated seconds of a step, by a few constants: the planner chooses layouts by them.

One is measured, with 135 million parameters on one H200 (docs/gpu.md), the others are not: an
estimate is right within a factor of two or three at best. Layouts are compared with each other,
where most of that cancels. Sources: 2 FLOP a parameter and token forward, twice that backward
(Kaplan et al. 2020); peaks, bandwidths and links of NVIDIA's data sheets. The shares of them are
what others report for training and serving of this size.
"""

from dataclasses import dataclass

from entrypoint.hardware import Gpu, Hardware
from entrypoint.layout import Topology
from entrypoint.memory import ModelShape
from entrypoint.workload import TURN_SECONDS, Workload

PEAK_TFLOPS = {"T4": 65, "A100": 312, "A6000": 155, "RTX4090": 165, "L40S": 362, "B200": 2250}
"""Dense 16-bit, by what a GPU's name contains."""
HOPPER_TFLOPS = 989  # H100, H200, and all that are not listed
WITHOUT_NVLINK = ("T4", "A6000", "RTX4090", "L40S")
TRAINING_SHARE = 0.3  # of the peak, forward and backward of a few thousand tokens a pass
# The rows of a step of duels begin alike, which each pass computes again: 11% more tokens by this
# in passes of 4,096 than in wide ones, 5% in 8,192 (two recorded steps: 9 and 15, 2 and 3).
SHARED_TOKENS = 500
WIDE_PASS = 32768
LEARNED_A_SECOND = 5.4e4  # tokens of trees on a GPU at most, all around them included: measured
BANDWIDTH = 2.0e12  # bytes a second of an 80 GB GPU, of which decoding reaches
BANDWIDTH_SHARE = 0.5
DECODE_SECONDS = 0.008  # a token of all live episodes at least, however small the model
PREFILL_SHARE = 0.4  # of the peak; every turn computes only what is new
OWN_PREFILL_SHARE = 0.15  # without vLLM, by transformers; every turn computes its whole prompt
OWN_DECODE_SECONDS = 0.05  # a token of all live episodes there
CPU_FLOPS = 2.0e10  # a second and core, float32
LINK = 2.0e11  # bytes a second between two GPUs, half of what an H100's NVLink has each way
PCIE_LINK = 2.0e10  # a third of PCIe 5.0 x16, where there is no NVLink
PUSH_SECONDS = 1.0  # to announce weights to a server, empty its cache and ask what it holds
FILE_BANDWIDTH = 1.0e9  # bytes a second of weights that are written and read again
GATHER_SHARE = 0.1  # of the link: ZeRO-3's weights are gathered tensor by tensor
WAKE_SECONDS = 3.0  # vLLM's blog of 2025-10-26: 0.8 to 2.6 s to wake from level 2; and to sleep
# (with 135 million parameters on an H200 playing, weights, waking and sleeping took 1.65 s in all)
LOAD_BANDWIDTH = 5.0e10  # bytes a second into an engine of the same GPU, tensor by tensor


@dataclass(frozen=True)
class StepCost:
    """Estimated seconds of one step, whose parts take turns.

    Attributes:
        rollout: playing its games.
        weights: bringing an engine the new weights, and waking it where it slept.
        learning: from these games.
    """

    rollout: float
    weights: float
    learning: float

    @property
    def seconds(self) -> float:
        """A whole step."""
        return self.rollout + self.weights + self.learning


def step_cost(
    topology: Topology, shape: ModelShape, hardware: Hardware, group_size: int, work: Workload
) -> StepCost:
    """Estimate a step of this plan; see the constants for what is assumed.

    Args:
        work: parts of an episode, within the plan's longest one.
    """
    episodes = topology.groups * group_size
    return StepCost(
        rollout=rollout_seconds(topology, shape, hardware, episodes, work),
        weights=_weights(topology, shape, hardware),
        learning=_learning(
            topology, shape, hardware, episodes * (work.computed if shape.trees else work.trained)
        ),
    )


def taught_step_seconds(
    topology: Topology, shape: ModelShape, hardware: Hardware, decisions: int, work: Workload
) -> float:
    """Seconds of a step that learns from so many decisions of teachers: nothing is played, and no
    weights travel. The teachers prepare the next steps meanwhile, in processes, or in a thread for
    whose lock the trainer waits."""
    taught = work.taught if shape.trees else work.taught_row
    learning = _learning(topology, shape, hardware, decisions * taught)
    teaching = decisions * (TURN_SECONDS + work.teaching) / topology.processes
    if topology.layout == "cpu" or not work.teachers:  # CPUs do both
        return learning + teaching
    cores = max(1, hardware.cpus // topology.processes - 1)
    return max(learning, teaching / min(work.teachers, cores))


def rollout_seconds(
    topology: Topology, shape: ModelShape, hardware: Hardware, episodes: int, work: Workload
) -> float:
    """Seconds to play this many episodes, those of a step or of an evaluation."""
    engine = topology.layout == "cpu" or topology.memory_share > 0
    computed = work.prefilled if engine else work.turns * work.context
    prompts = 2 * (shape.parameters - shape.idle) * episodes * computed
    playing = episodes * work.seconds / topology.processes
    if topology.layout == "cpu":
        return playing + prompts / (CPU_FLOPS * hardware.cpus)
    share = PREFILL_SHARE if engine else OWN_PREFILL_SHARE
    prefill = prompts / (_peak(hardware) * share * len(topology.inference_gpus))
    return max(playing, prefill + _decoding(topology, shape, episodes, work))


def assumptions(work: Workload, *, trees: bool) -> str:
    """Basis of an estimate, in one line."""
    computed = "as its layers take no trees"
    if trees:
        share = work.computed / work.trained
        computed = f"of which trees with all legal replies compute {share:.0%}"
    return (
        f"an episode of {work.turns:.0f} turns on average, {work.trained:,.0f} tokens to learn "
        f"from, {computed}; {work.sampled:,.0f} "
        f"sampled one after another and up to {work.longest:,.0f}; "
        f"{TRAINING_SHARE:.0%} of peak FLOPS in training, {PREFILL_SHARE:.0%} in prefill; waiting "
        "for servers comes on top; measured with 135 million parameters alone"
    )


def _learning(topology: Topology, shape: ModelShape, hardware: Hardware, tokens: float) -> float:
    """Seconds of forward and backward of so many tokens, and of what the trainers exchange.

    Args:
        tokens: in passes of `WIDE_PASS`; smaller ones of trees have more.
    """
    if shape.trees:
        tokens *= 1 + max(0.0, SHARED_TOKENS / topology.pass_tokens - SHARED_TOKENS / WIDE_PASS)
    forward = 2 * (shape.parameters - shape.idle) * tokens
    if topology.layout == "cpu":
        return 3 * forward / (CPU_FLOPS * hardware.cpus)
    trainers = len(topology.trainer_gpus)
    at_peak = _forwards(topology) * forward / (_peak(hardware) * TRAINING_SHARE)
    computing = max(at_peak, tokens / LEARNED_A_SECOND if shape.trees else 0.0) / trainers
    passes = max(1.0, tokens / (trainers * topology.pass_tokens))
    return computing + _exchange(topology, shape, passes) / _link(hardware)


def _link(hardware: Hardware) -> float:
    """Bytes a second between two GPUs."""
    slow = any(name in _squeezed(gpu) for gpu in hardware.gpus for name in WITHOUT_NVLINK)
    return PCIE_LINK if slow else LINK


def _forwards(topology: Topology) -> int:
    """A step's computation in forward passes: forward, backward for activations, for weights, and
    forward again where activations are recomputed."""
    return 2 + (topology.tuning == "full") + topology.checkpointing


def _decoding(topology: Topology, shape: ModelShape, episodes: int, work: Workload) -> float:
    """Seconds of the tokens that come one after another: each reads all weights and the cache.

    An episode that ends makes room for another; no rollout is shorter than its longest episode.
    """
    an_engines = -(-episodes // len(topology.inference_gpus))
    live = min(topology.live_episodes, an_engines)
    tokens = max(work.longest, an_engines * work.sampled / live)
    served = topology.memory_share > 0
    read = 2 * shape.parameters + live * shape.episode_bytes(work.context, served=served)
    least = DECODE_SECONDS if served else OWN_DECODE_SECONDS
    return tokens * max(least, read / (BANDWIDTH * BANDWIDTH_SHARE))


def _weights(topology: Topology, shape: ModelShape, hardware: Hardware) -> float:
    if not topology.memory_share:
        return 0.0
    whole = 2 * shape.parameters
    gathered = whole / (_link(hardware) * GATHER_SHARE) if topology.zero_stage == 3 else 0.0
    if topology.layout == "split":
        return PUSH_SECONDS + gathered + whole / FILE_BANDWIDTH
    return WAKE_SECONDS + gathered + whole / LOAD_BANDWIDTH


def _exchange(topology: Topology, shape: ModelShape, passes: float) -> float:
    """Bytes that each trainer sends in a step (Rajbhandari et al. 2020), none of it hidden.

    ZeRO-2 reduces gradients in each pass and gathers the new weights once; ZeRO-3 gathers weights
    in each forward and backward, as adapters' frozen ones are.
    """
    trainers = len(topology.trainer_gpus)
    gradients = passes if topology.tuning == "full" else 0.0
    weights = 2 * passes if topology.zero_stage == 3 else float(topology.tuning == "full")
    return 2 * shape.parameters * (gradients + weights) * (trainers - 1) / trainers


def _peak(hardware: Hardware) -> float:
    """FLOP a second of the slowest GPU."""
    return min(_tflops(gpu) for gpu in hardware.gpus) * 1e12


def _tflops(gpu: Gpu) -> int:
    known = (tflops for name, tflops in PEAK_TFLOPS.items() if name in _squeezed(gpu))
    return next(known, HOPPER_TFLOPS)


def _squeezed(gpu: Gpu) -> str:
    return gpu.name.replace(" ", "")
