"""Use of a GPU's memory, in bytes, from the model's shape and the plan.

Assumptions, each conservative: no reference model (KL weight 0); the longest episodes fill a pass.
States are at least those of DeepSpeed's own estimators, which a test compares; activations are at
least what autograd keeps of one layer, which a test counts. On GPUs TRL's fused head never makes a
pass's logits: it works through them in tiles.
"""

from dataclasses import dataclass
from typing import Literal

from entrypoint.hardware import GIB

Tuning = Literal["full", "lora"]

MOMENT_BYTES = 8  # Adam's two float32 moments, per trained parameter
LOGIT_BYTES = 8  # on a CPU: logits, their gradient and a temporary, per token and vocabulary entry
HEAD_TILE_BYTES = 2 * 32768 * 4096  # TRL's tile of logits: entries of the vocabulary, tokens
BUCKET_BYTES = 2 * 500_000_000  # DeepSpeed's default bucket of 5e8 elements
BUCKETS = {0: 0, 2: 3, 3: 4}  # by ZeRO stage: two of gradients, then all-gather, or live weights
ONLY_LEARNING = ("gradients", "weights' copies", "a whole layer", "buckets")
"""States that a process holds only between forward and optimizer step."""
CONTEXT_BYTES = 2 * GIB  # CUDA context, NCCL buffers, workspaces of one process
ENGINE_WORKSPACE_BYTES = 4 * GIB  # vLLM: CUDA graphs and the activations of its largest batch
SLEEPING_ENGINE_BYTES = 2 * GIB  # what an engine asleep keeps on its GPU
USABLE_SHARE = 0.94  # the rest is lost to fragmentation


@dataclass(frozen=True)
class ModelShape:
    """Facts that memory depends on, from config.json and the weights' headers.

    Attributes:
        idle: parameters of a mixture's experts that a token does not pass.
        mixer_bytes: of a recurrent layer's computation per token, 0 in models without any.
        recurrent_layers: layers that have a state in the place of keys and values.
        state_bytes: of all these states of an episode.
        trees: whether rows that begin alike can be computed as trees.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    idle: int = 0
    mixer_bytes: int = 0
    recurrent_layers: int = 0
    state_bytes: int = 0
    trees: bool = True

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers in a 16-bit type."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    def episode_bytes(self, tokens: float, *, served: bool) -> int:
        """Keys, values and states of a live episode of so many tokens.

        vLLM keeps several states of it, in blocks as large as attention's: all layers count as
        attention. The trainers' own cache copies the keys and values of a layer as rows join.
        """
        if served:
            return round(tokens * self.kv_bytes_per_token)
        copied = self.layers - self.recurrent_layers + 1
        return round(tokens * copied * self.kv_bytes_per_token / self.layers) + self.state_bytes

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest single module, which ZeRO-3 gathers whole."""
        return self.hidden * max(self.vocabulary, self.intermediate, self.heads * self.head_dim)

    def lora_parameters(self, rank: int) -> int:
        """Adapters of this rank on every linear layer of every block."""
        attention, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = (
            2 * (self.hidden + attention)  # query and output
            + 2 * (self.hidden + keys)  # key and value
            + 3 * (self.hidden + self.intermediate)  # gate, up and down
        )
        return rank * widths * self.layers


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
        """The items leave room for fragmentation."""
        return self.used <= self.total * USABLE_SHARE


@dataclass(frozen=True)
class TrainerLoad:
    """Memory of one trainer process.

    Attributes:
        ranks: processes that ZeRO spreads states over.
        zero_stage: 0 spreads nothing, 2 gradients and optimizer, 3 weights as well.
        tokens: of a forward and backward pass; never fewer than the longest episode's.
        compute_bytes: of a number in the computation, 2 for bfloat16, 4 for float32.
        checkpointing: true if activations inside a layer are recomputed.
        fused_head: true if logits are made in tiles, as on GPUs.
    """

    shape: ModelShape
    tuning: Tuning
    ranks: int
    zero_stage: Literal[0, 2, 3]
    tokens: int
    lora_rank: int = 16
    compute_bytes: int = 2
    checkpointing: bool = True
    fused_head: bool = True


def largest_pass(budget: int, longest: int) -> int:
    """Tokens of the largest forward and backward pass: an episode longer than the budget is a pass
    for itself, with rows that begin like it, which are a quarter of its tokens at most."""
    return budget if longest <= budget else longest + longest // 4


def trainer_states(load: TrainerLoad) -> tuple[tuple[str, int], ...]:
    """Weights, gradients and optimizer states of one process, by name, in bytes.

    Without DeepSpeed, full fine-tuning holds float32 weights and, while it learns, copies of them
    in the computation's type. With it, weights are of that type; a float32 master copy belongs to
    the optimizer, and its step takes gradients of both types.
    """
    shape, stage = load.shape, load.zero_stage
    spread = load.ranks if stage else 1
    weights = shape.parameters * load.compute_bytes // (spread if stage == 3 else 1)
    copies, buckets = 0, BUCKETS[stage] * BUCKET_BYTES
    if load.tuning == "lora":
        adapters = shape.lora_parameters(load.lora_rank)
        weights += 4 * adapters
        gradients, optimizer = 4 * adapters, MOMENT_BYTES * adapters
    elif stage == 0:
        copies = weights if load.compute_bytes < 4 else 0
        weights = 4 * shape.parameters
        gradients, optimizer = 4 * shape.parameters, MOMENT_BYTES * shape.parameters
    else:
        both = 4 if stage == 3 else 4 + load.compute_bytes
        gradients, optimizer = both * shape.parameters, (4 + MOMENT_BYTES) * shape.parameters
    states = {
        "weights": weights,
        "gradients": gradients // spread,
        "optimizer": optimizer // spread,
        "weights' copies": copies,
        "a whole layer": 4 * shape.largest_layer if stage == 3 else 0,
        "buckets": buckets,
    }
    return tuple((name, size) for name, size in states.items() if size)


def kept_by_zero_3(load: TrainerLoad) -> tuple[tuple[str, int], ...]:
    """Buffers of gradients that DeepSpeed's optimizer keeps when they are not needed."""
    if load.zero_stage != 3:
        return ()
    alone = load.tuning == "lora"
    trained = load.shape.lora_parameters(load.lora_rank) if alone else load.shape.parameters
    width = 4 if alone else load.compute_bytes
    return (("gradients' buffers", width * trained // load.ranks + BUCKET_BYTES),)


def layer_bytes(shape: ModelShape, compute_bytes: int, residual_bytes: int) -> int:
    """Bytes that autograd keeps of one layer per token: norms in float32, projections, the MLP.

    `residual_bytes`, of a number between layers, are the weights': autocast leaves those alone.
    """
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    norms = 2 * (4 + residual_bytes) * shape.hidden
    return norms + compute_bytes * (5 * shape.hidden + 2 * qkv + 4 * shape.intermediate)


def trainer_activations(load: TrainerLoad) -> tuple[tuple[str, int], ...]:
    """Activations of one pass and what its logits take, by name, in bytes."""
    shape, tokens = load.shape, load.tokens
    autocast = load.tuning == "full" and load.zero_stage == 0
    residual = 4 if autocast else load.compute_bytes
    layer = tokens * layer_bytes(shape, load.compute_bytes, residual)
    mixer = tokens * shape.mixer_bytes
    if load.checkpointing:  # each layer's input, and one layer at a time twice: values, gradients
        layers = shape.layers * tokens * shape.hidden * residual + 2 * layer + mixer
    else:
        layers = (shape.layers + 1) * layer + shape.layers * mixer
    if not load.fused_head:
        return ("activations", layers), ("logits", tokens * shape.vocabulary * LOGIT_BYTES)
    # the gradient of the head's input in float32 and then in the weights' type, and its own
    head = HEAD_TILE_BYTES + 6 * tokens * shape.hidden
    if load.tuning == "full":
        head += 6 * shape.vocabulary * shape.hidden
    return ("activations", layers), ("output head", head)
