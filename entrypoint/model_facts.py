"""Facts of the base model from its folder, read without torch and without its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.memory import ModelShape
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import check_structure, read_json

DEFAULT_CONTEXT = 4096  # of a model that names none
LARGEST_NUMBER = 1 << 40  # beyond it a config.json is damaged

# config.json's spellings of one number
LAYERS = "num_hidden_layers", "n_layer", "num_layers", "n_layers"
HEADS = "num_attention_heads", "n_head", "num_heads", "n_heads"
CONTEXT = "max_position_embeddings", "n_positions", "max_seq_len"

RECURRENT = frozenset({"mamba", "linear_attention"})
"""Kinds of recurrent layers in a config.json."""

ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers of which trees of rows can be computed."""

MAMBA_COPIES = 17
"""Float32 tensors of shape (heads, width) for each token of a Mamba 2 layer, with the scan of
`miner/rollout/mamba.py`: the image has no kernels."""
MAMBA_DECAYS = 2.1
"""The same of shape (heads, chunk)."""
MAMBA_CHUNK = 256
DELTA_COPIES = 28
"""Float32 tensors of shape (heads, size) for each token: transformers' code of gated delta rules.
"""


@dataclass(frozen=True)
class ModelFacts:
    """The base model.

    Attributes:
        architecture: the first of config.json's architectures.
        dtype: the weights' commonest dtype in the words of safetensors ("BF16").
        weight_bytes: size of the weight files.
        counted: true if `shape.parameters` was counted in the files, not estimated for a model that
            is not there.
        gaps: parts that a base model lacks, in words (chat template, padding token, ...).
    """

    architecture: str
    dtype: str
    weight_bytes: int
    shape: ModelShape
    counted: bool
    gaps: tuple[str, ...]


def read_model_facts(folder: Path) -> ModelFacts:
    """Read config.json, tokenizer files and weight headers.

    Raises: `Failure` (MODEL) with what is missing and where it was looked for.
    """
    try:
        if not folder.is_dir():
            there = _siblings(folder.parent)
            raise Failure(ExitStatus.MODEL, f"there is no folder {folder}: {there}")
        config = read_json(folder / "config.json")
        report = check_structure(folder, strict=False, published=False)
        shape = shape_of(config, report.parameters)
    except OSError as error:
        raise Failure(
            ExitStatus.MODEL,
            f"the base model in {folder} cannot be read ({error.strerror}: {error.filename}): "
            "its files must be readable without any capability",
        ) from None
    except UnverifiedModelError as error:
        raise Failure(
            ExitStatus.MODEL, f"the base model cannot be used: {error} Download it again."
        ) from None
    return ModelFacts(
        architecture=architecture_of(config),
        dtype=max(report.dtypes, key=lambda dtype: report.dtypes[dtype]),
        weight_bytes=report.weight_bytes,
        shape=shape,
        counted=True,
        gaps=report.warnings,
    )


def shape_of(config: Mapping[str, Any], parameters: int | None = None) -> ModelShape:
    """The shape from a config.json (its text part if it has several), in the common spellings.

    `parameters` None estimates them from the shape.
    Raises: `Failure` (MODEL) naming the number that is missing.
    """
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config

    def size(*keys: str) -> int:
        found = _number(config, *keys)
        if found is None:
            missing = " or ".join(keys)
            raise Failure(ExitStatus.MODEL, f"the base model's config.json has no number {missing}")
        return found

    # transformers saves a Nemotron's list of layers without their number
    listed = config.get("layers_block_type")
    layers = len(listed) if isinstance(listed, list) else size(*LAYERS)
    hidden = size("hidden_size", "n_embd", "d_model")
    heads = _number(config, *HEADS) or 1  # state-space models have none
    recurrent = _mixer_bytes(config, hidden)
    recurrent_layers, state_bytes = _delta_states(config)
    shape = ModelShape(
        parameters=parameters or 0,
        layers=layers,
        hidden=hidden,
        intermediate=(_number(config, "intermediate_size", "n_inner") or 4 * hidden)
        * (2 if config.get("use_double_wide_mlp") else 1),  # Gemma 4: in half of its layers
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads") or heads,
        head_dim=_number(config, "head_dim") or max(1, hidden // heads),
        vocabulary=size("vocab_size"),
        context=_number(config, *CONTEXT) or DEFAULT_CONTEXT,
        idle=_idle(config, hidden, layers, parameters or 0),
        mixer_bytes=recurrent,
        recurrent_layers=recurrent_layers,
        state_bytes=state_bytes,
        trees=_layer_kinds(config) <= ATTENTION and not recurrent,
    )
    if parameters is not None:
        return shape
    return replace(shape, parameters=_estimate(shape, tied=bool(config.get("tie_word_embeddings"))))


def _layer_kinds(config: Mapping[str, Any]) -> set[str]:
    """Kinds of layers that a config.json lists; none where all are plain attention."""
    return {*(config.get("layers_block_type") or ()), *(config.get("layer_types") or ())}


def _idle(config: Mapping[str, Any], hidden: int, layers: int, parameters: int) -> int:
    """Parameters of the experts that a token does not pass, 0 where their sizes are not named or
    add up to more than there are."""
    experts = _number(config, "num_experts", "num_local_experts", "n_routed_experts") or 0
    chosen = _number(config, "num_experts_per_tok") or experts
    width = _number(config, "moe_intermediate_size", "intermediate_size") or 0
    dense = _number(config, "first_k_dense_replace", "num_dense_layers") or 0
    listed = [*(config.get("layers_block_type") or config.get("hybrid_override_pattern") or ())]
    mixtures = listed.count("moe") + listed.count("E") or layers - dense
    matrices = 2 if config.get("mlp_hidden_act") == "relu2" else 3  # without a gate, with one
    expert = matrices * hidden * width * mixtures
    return expert * max(0, experts - chosen) if expert * experts < parameters else 0


def _mixer_bytes(config: Mapping[str, Any], hidden: int) -> int:
    """Bytes per token of a recurrent layer's computation, 0 without such layers; docs/gpu.md has
    what torch's tracker counts."""
    kinds = _layer_kinds(config)
    if kinds and not kinds & RECURRENT:
        return 0
    heads = _number(config, "mamba_num_heads", "mamba_n_heads")
    if heads:
        chunk = _number(config, "chunk_size", "mamba_chunk_size") or MAMBA_CHUNK
        width = _number(config, "mamba_head_dim", "mamba_d_head") or 2 * hidden // heads
        return int(4 * heads * (MAMBA_COPIES * width + MAMBA_DECAYS * chunk))
    heads = _number(config, "linear_num_value_heads")
    if heads or "linear_attention" in kinds:
        size = _number(config, "linear_value_head_dim")
        return DELTA_COPIES * 4 * (heads * size if heads and size else 2 * hidden)
    return 0


def _delta_states(config: Mapping[str, Any]) -> tuple[int, int]:
    """Layers of gated delta rules and bytes of an episode's states in them, as transformers holds
    them; none where their sizes are not named."""
    names = "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads", "conv_kernel_dim"
    sizes = [_number(config, f"linear_{name}") or 0 for name in names]
    if not all(sizes):
        return 0, 0
    key, value, key_heads, heads, kernel = sizes
    state = 4 * heads * key * value + 2 * kernel * (2 * key_heads * key + heads * value)
    layers = list(config.get("layer_types") or ()).count("linear_attention")
    return layers, layers * state


def _estimate(shape: ModelShape, *, tied: bool) -> int:
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    blocks = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    return blocks + shape.vocabulary * shape.hidden * (1 if tied else 2)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The first of config.json's architectures, else its model type."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return str(config.get("model_type", "unknown"))


def _number(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and 0 < value < LARGEST_NUMBER:
            return value
    return None


def _siblings(folder: Path) -> str:
    """Description of what is there instead: the commonest mistake is the name."""
    if not folder.is_dir():
        return f"{folder} does not exist either; mount the model cache"
    names = sorted(child.name for child in folder.iterdir())[:5]
    return f"{folder} holds {', '.join(names) or 'nothing'}"
