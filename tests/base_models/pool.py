"""Bases of the pool as made models: each one's own architecture with few layers and random weights.

Qwen3.5, Gemma 4 and Ministral 3 are whole checkpoints, with an image part, as their makers publish
them; the latter two are text models too. Templates are TRL's copies of the families' own; where it
has none (Granite, Olmo) one of the family's form of calls stands in, and two bases have none.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerBase,
)

from miner.rollout.base_templates import base_template
from tests.base_models import vocabularies
from tests.builders import trl_template

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if loop.first and tools %}{{ 'Tools: ' + tools | tojson + ' Write CALLS.\\n' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 8192,
}
SERVED = {"hidden_size": 64, "head_dim": 32, "global_head_dim": 32}
SERVED |= {"block_dim": 64, "conv_dim": 64}
SERVED |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
"""Other sizes, where vLLM serves: its kernels take no others, and its LFM2 asks for what its
checkpoints have beside the sizes."""
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
GEMMA = {
    "hidden_size_per_layer_input": 16,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "global_head_dim": 16,
}
IMAGE = {"hidden_size": 16, "intermediate_size": 16}
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 16}


def validators(model_type: str) -> str:
    """A template of the form of the validator's."""
    found = base_template(model_type, Path("no copy"))
    assert found is not None
    return found[0]


@dataclass(frozen=True)
class PoolBase:
    """One architecture of the pool.

    Attributes:
        bases: the ends of their ids.
        kind: model_type of the checkpoint.
        family: the parser that the validator serves it with.
        template: None for a base without one.
        sizes: of the text model, beside `SMALL`.
        image: sizes of the image part, where there is one.
    """

    bases: tuple[str, ...]
    kind: str
    family: str
    template: str | None
    sizes: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] | None = None


POOL = (
    PoolBase(("Llama-3.2-3B-Instruct",), "llama", "llama3", trl_template("llama3_2")),
    PoolBase(("Llama-3.1-8B-Instruct",), "llama", "llama3", trl_template("llama3_1")),
    PoolBase(
        ("Qwen2.5-1.5B-Instruct", "Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct"),
        "qwen2",
        "qwen25",
        trl_template("qwen2_5"),
    ),
    PoolBase(("Qwen3-4B-Instruct-2507",), "qwen3", "qwen25", trl_template("qwen3_instruct_2507")),
    PoolBase(
        ("NVIDIA-Nemotron-3-Nano-4B",),
        "nemotron_h",
        "qwen3_coder",
        trl_template("nemotron_3_nano"),
        {
            "layers_block_type": ["mamba", "attention"],
            "ssm_state_size": 16,
            "mamba_num_heads": 2,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "chunk_size": 64,
        },
    ),
    PoolBase(
        ("Qwen3.5-0.8B", "Qwen3.5-2B", "Qwen3.5-4B"),
        "qwen3_5",
        "qwen3_coder",
        trl_template("qwen3_5_nothink"),
        LINEAR,
        {"depth": 1, "num_heads": 1, "out_hidden_size": 32, "num_position_embeddings": 16} | IMAGE,
    ),
    PoolBase(("granite-4.1-3b",), "granite", "qwen25", CHATML.replace("CALLS", "<tool_call>")),
    PoolBase(
        ("Olmo-3-7B-Instruct",),
        "olmo3",
        "olmo",
        CHATML.replace("CALLS", "<function_calls>"),
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    ),
    PoolBase(
        ("Olmo-Hybrid-Instruct-SFT-7B",),
        "olmo_hybrid",
        "olmo",
        CHATML.replace("CALLS", "<function_calls>"),
        LINEAR,
    ),
    PoolBase(
        ("LFM2.5-2.6B",),
        "lfm2",
        "lfm2",
        trl_template("lfm2_2_5_v2"),
        {"layer_types": ["conv", "full_attention"]},
    ),
    PoolBase(
        ("gemma-4-E2B",),
        "gemma4",
        "qwen25",
        None,
        GEMMA,
        {"num_key_value_heads": 1} | LAYERS | IMAGE,
    ),
    PoolBase(
        ("Ministral-3-3B-Base-2512",),
        "mistral3",
        "qwen25",
        None,
        {"model_type": "ministral3"},
        {"model_type": "pixtral", "image_size": 28, "patch_size": 14} | LAYERS | IMAGE,
    ),
    # as the validator's newer downloader hands over these two
    PoolBase(("gemma-4-E2B, its text",), "gemma4_text", "qwen25", validators("gemma4"), GEMMA),
    PoolBase(("Ministral-3-3B, its text",), "ministral3", "qwen25", validators("ministral3")),
)
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MIXTURES = (
    PoolBase(("a Qwen3 of experts",), "qwen3_moe", "qwen25", CHATML, EXPERTS),
    PoolBase(
        ("a Nemotron of experts",),
        "nemotron_h",
        "qwen3_coder",
        trl_template("nemotron_3_nano"),
        {
            **next(base.sizes for base in POOL if base.kind == "nemotron_h"),
            **EXPERTS,
            "n_routed_experts": EXPERTS["num_experts"],
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "moe", "attention"],
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    PoolBase(
        ("an LFM2 of experts",),
        "lfm2_moe",
        "lfm2",
        trl_template("lfm2_2_5_v2"),
        {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, **EXPERTS},
    ),
)
"""Beside the pool: experts have other names in memory than in files, and routers have biases."""
SPECIAL = (
    *("<pad>", "<|im_start|>", "<|im_end|>", "<bos>"),
    *("<tool_call>", "</tool_call>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<function_calls>", "</function_calls>", "<start_of_turn>", "<end_of_turn>"),
)


def make_folder(
    base: PoolBase, folder: Path, *, served: bool = False, seed: int = 0
) -> PreTrainedTokenizerBase:
    """Write `base` with a hash for a name, as jobs have it; returns its tokenizer.

    Args:
        served: the text model alone, with `SERVED`, matrices that tell tokens apart, buffers that
            change what it computes, and a tokenizer of numbers.
        seed: of the weights.
    """
    tokenizer = vocabularies.fast(
        vocabularies.numbers(SPECIAL, 4096) if served else vocabularies.qwen(SPECIAL, 4096),
        base.template,
        bos_token="<bos>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
    )
    tokenizer.save_pretrained(folder)
    sizes = {**SMALL, "vocab_size": len(tokenizer), **base.sizes, **(SERVED if served else {})}
    if base.kind.startswith("gemma4"):
        sizes["vocab_size_per_layer_input"] = len(tokenizer)
    special = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    torch.manual_seed(seed)
    if base.image is None:
        config = AutoConfig.for_model(base.kind, **sizes, **special)
    else:
        config = AutoConfig.for_model(
            base.kind, text_config=sizes | special, vision_config=base.image, **special
        )
    if served:
        config = config.get_text_config()
    whole = base.image is not None and not served
    kind = AutoModelForImageTextToText if whole else AutoModelForCausalLM
    model = kind.from_config(config)
    if served:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight *= 8.0 if weight.dim() == 2 or ".experts." in name else 1.0
            for name, buffer in model.named_buffers():
                buffer += torch.rand_like(buffer) if name in model.state_dict() else 0
    model.save_pretrained(folder)
    _split_convolutions(folder / "model.safetensors")
    return tokenizer


def _split_convolutions(file: Path) -> None:
    """Give an Olmo-Hybrid's convolutions the sizes that its maker's files have: transformers saves
    equal parts of the one that it makes of them."""
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(".q_conv1d.weight")]:
        names = [name.replace(".q_", f".{part}_") for part in "qkv"]
        sizes = [len(tensors[name.replace("conv1d", "proj")]) for name in names]
        whole = torch.cat([tensors[name] for name in names])
        tensors |= {n: t.clone() for n, t in zip(names, whole.split(sizes), strict=True)}
    save_file(tensors, file, {"format": "pt"})
