"""Where a GPU's memory goes, in bytes, from the model's shape and the plan.

Assumptions, each conservative: Adam with float32 master weights (12 bytes a parameter); bfloat16
weights and gradients on GPUs; activation checkpointing there, none on the CPU; logits of a whole
micro-batch held at once; no reference model (KL weight 0). Sources: ZeRO (Rajbhandari et al. 2020)
for states, Korthikanti et al. 2022 for activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from entrypoint.hardware import GIB

Tuning = Literal["full", "lora"]

OPTIMIZER_BYTES = 12  # float32 master weight and two moments, per trained parameter
LOGIT_BYTES = 8  # logits, their gradient and a float32 temporary, per token and vocabulary entry
LORA_RANK = 32
CONTEXT_BYTES = 2 * GIB  # CUDA context, NCCL buffers, workspaces of one process
ENGINE_WORKSPACE_BYTES = 4 * GIB  # vLLM: CUDA graphs and the activations of its largest batch
SLEEPING_ENGINE_BYTES = 2 * GIB  # what an engine asleep keeps on its GPU
USABLE_SHARE = 0.94  # the rest is lost to fragmentation


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on, from config.json and the weights' headers."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers in a 16-bit type."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    @property
    def lora_parameters(self) -> int:
        """Adapters of rank `LORA_RANK` on every linear layer of every block."""
        attention, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = (
            2 * (self.hidden + attention)  # query and output
            + 2 * (self.hidden + keys)  # key and value
            + 3 * (self.hidden + self.intermediate)  # gate, up and down
        )
        return LORA_RANK * widths * self.layers


@dataclass(frozen=True)
class MemoryPlan:
    """The fullest moment of one device: what takes how many bytes, of how many there are."""

    moment: str
    total: int
    items: tuple[tuple[str, int], ...]

    @property
    def used(self) -> int:
        """Sum of all items, in bytes."""
        return sum(size for _, size in self.items)

    @property
    def fits(self) -> bool:
        """Whether the items leave room for fragmentation."""
        return self.used <= self.total * USABLE_SHARE


@dataclass(frozen=True)
class TrainerLoad:
    """What one trainer process has to hold.

    Attributes:
        ranks: processes that ZeRO spreads states over.
        zero_stage: 0 spreads nothing, 2 gradients and optimizer, 3 weights as well.
        weight_bytes: 2 for bfloat16, 4 for float32.
        checkpointing: whether activations inside a layer are recomputed.
    """

    shape: ModelShape
    tuning: Tuning
    ranks: int
    zero_stage: Literal[0, 2, 3]
    micro_batch: int
    episode_tokens: int
    weight_bytes: int = 2
    checkpointing: bool = True


def trainer_states(load: TrainerLoad) -> tuple[tuple[str, int], ...]:
    """Weights, gradients and optimizer states of one process."""
    shape = load.shape
    trained = shape.parameters if load.tuning == "full" else shape.lora_parameters
    adapters = 0 if load.tuning == "full" else shape.lora_parameters * load.weight_bytes
    weights = shape.parameters * load.weight_bytes // (load.ranks if load.zero_stage == 3 else 1)
    spread = load.ranks if load.zero_stage >= 2 else 1
    # float32 weights are their own master copy
    optimizer = trained * (OPTIMIZER_BYTES - (4 if load.weight_bytes == 4 else 0))
    return (
        ("weights", weights + adapters),
        ("gradients", trained * load.weight_bytes // spread),
        ("optimizer", optimizer // spread),
    )


def trainer_activations(load: TrainerLoad) -> int:
    """Activations and logits of one micro-batch of whole episodes."""
    shape, tokens = load.shape, load.micro_batch * load.episode_tokens
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    one_layer = 2 * tokens * (6 * shape.hidden + qkv + 3 * shape.intermediate) * load.weight_bytes
    if load.checkpointing:
        layers = shape.layers * tokens * shape.hidden * load.weight_bytes + one_layer
    else:
        layers = shape.layers * one_layer // 2  # forward values only; gradients live one at a time
    return layers + tokens * shape.vocabulary * LOGIT_BYTES
