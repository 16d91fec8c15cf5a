"""How long a step may take: a few constants, for the dry run's estimate. None is measured by us.

An estimate is right within a factor of two or three at best. Sources: 2 FLOP a parameter and token
forward, twice that backward (Kaplan et al. 2020); peaks and bandwidths of NVIDIA's data sheets. The
shares of them are what others report for training and serving of this size.
"""

from __future__ import annotations

from dataclasses import dataclass

from entrypoint.hardware import Gpu, Hardware
from entrypoint.memory import ModelShape
from entrypoint.topology import Topology

PEAK_TFLOPS = {"T4": 65, "A100": 312, "A6000": 155, "RTX4090": 165, "L40S": 362, "B200": 2250}
"""Dense 16-bit, by what a GPU's name contains."""
HOPPER_TFLOPS = 989  # H100, H200, and whatever is not listed
TRAINING_SHARE = 0.3  # of the peak, forward and backward of a few thousand tokens a pass
BANDWIDTH = 2.0e12  # bytes a second of an 80 GB GPU, of which decoding reaches
BANDWIDTH_SHARE = 0.5
SEQUENTIAL_TOKENS = 120  # replies of an episode come one after another: 15 turns of 8 tokens
DECODE_SECONDS = 0.008  # a token of all live episodes at least, however small the model
PREFILL_SHARE = 0.4  # of the peak; every turn computes only what is new
MEAN_EPISODE = 0.6  # of the longest, over Goofspiel's deck sizes
CPU_FLOPS = 2.0e10  # a second and core, float32


@dataclass(frozen=True)
class StepCost:
    """Estimated seconds of one step: playing its games, and learning from them."""

    rollout: float
    learning: float

    @property
    def seconds(self) -> float:
        """A whole step: playing and learning take turns."""
        return self.rollout + self.learning


def step_cost(
    topology: Topology, shape: ModelShape, hardware: Hardware, group_size: int
) -> StepCost:
    """Estimate a step of this plan; see the constants for what is assumed."""
    episodes = topology.groups * group_size
    tokens = episodes * topology.episode_tokens * MEAN_EPISODE
    forward = 2 * shape.parameters * tokens
    passes = 4 if topology.checkpointing else 3  # a backward pass counts twice
    if topology.layout == "cpu":
        speed = CPU_FLOPS * hardware.cpus
        return StepCost(forward / speed, passes * forward / speed)
    peak = min(_peak(gpu) for gpu in hardware.gpus)
    engines = len(topology.inference_gpus)
    waves = -(-episodes // (topology.live_episodes * engines))
    # weights are read once for a token of all live episodes
    token = max(DECODE_SECONDS, 2 * shape.parameters / (BANDWIDTH * BANDWIDTH_SHARE))
    rollout = waves * SEQUENTIAL_TOKENS * token + forward / (peak * PREFILL_SHARE * engines)
    trainers = len(topology.trainer_gpus)
    return StepCost(rollout, passes * forward / (peak * TRAINING_SHARE * trainers))


def assumptions() -> str:
    """What an estimate rests on, in one line."""
    return (
        f"{MEAN_EPISODE:.0%} of the longest episode on average, {SEQUENTIAL_TOKENS} tokens of each "
        f"one after another, {TRAINING_SHARE:.0%} of peak FLOPS in training, {PREFILL_SHARE:.0%} "
        "in prefill; waiting for servers, evaluations and checkpoints come on top; not measured"
    )


def _peak(gpu: Gpu) -> float:
    known = (tflops for name, tflops in PEAK_TFLOPS.items() if name in gpu.name.replace(" ", ""))
    return next(known, HOPPER_TFLOPS) * 1e12
