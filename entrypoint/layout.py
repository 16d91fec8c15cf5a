"""The plan as data: which GPUs do what, how the trainer holds the model, and why."""

from dataclasses import dataclass, replace
from typing import Literal

from entrypoint.memory import MemoryPlan, Tuning

Layout = Literal["cpu", "colocated", "split"]
ZeroStage = Literal[0, 2, 3]


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
        pass_tokens: of one process's forward and backward pass; a longer episode is a pass alone.
        checkpointing: true if activations are recomputed in the backward pass.
        live_episodes: episodes that one engine (or the CPU process) plays at once.
        memory_share: vLLM's share of its GPU; 0 without vLLM.
        least_memory_share: share that its weights and one longest episode take.
        memory: the fullest moments, one plan each.
    """

    layout: Layout
    trainer_gpus: tuple[int, ...]
    inference_gpus: tuple[int, ...]
    tuning: Tuning
    zero_stage: ZeroStage
    dtype: Literal["float32", "bfloat16"]
    groups: int
    pass_tokens: int
    checkpointing: bool
    episode_tokens: int
    live_episodes: int
    memory_share: float
    least_memory_share: float
    memory: tuple[MemoryPlan, ...]
    choices: tuple[Choice, ...]

    @property
    def processes(self) -> int:
        """Trainer processes."""
        return max(1, len(self.trainer_gpus))

    @property
    def live_by_trainer(self) -> int:
        """Episodes that each trainer process plays at once, by an engine or itself."""
        return max(1, self.live_episodes * len(self.inference_gpus) // self.processes)

    def without_engine(self) -> "Topology":
        """The same trainers, which generate for as many episodes."""
        return replace(
            self,
            layout="colocated",
            inference_gpus=self.trainer_gpus,
            live_episodes=self.live_by_trainer,
            memory_share=0.0,
        )
