"""Bases of the pool as made models: each one's own architecture with few layers and random weights.

Text models throughout: the whole checkpoints of Qwen3.5, Gemma 4 and Ministral 3 hold an image part
as well, which is not made here. Templates are TRL's copies of the families' own; where it has none
(Granite, Olmo) one of the family's form of calls stands in, and two bases have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

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
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


@dataclass(frozen=True)
class PoolBase:
    """One architecture of the pool.

    Attributes:
        bases: the ends of their ids.
        kind: model_type of the text model.
        family: the parser that the validator serves it with.
        template: None for a base without one.
        sizes: of config.json, beside `SMALL`.
    """

    bases: tuple[str, ...]
    kind: str
    family: str
    template: str | None
    sizes: dict[str, Any] = field(default_factory=dict)


POOL = (
    PoolBase(("Llama-3.2-3B-Instruct",), "llama", "llama3", trl_template("llama3_2")),
    PoolBase(
        ("Qwen3.5-0.8B", "Qwen3.5-2B", "Qwen3.5-4B"),
        "qwen3_5_text",
        "qwen3_coder",
        trl_template("qwen3_5_nothink"),
        LINEAR,
    ),
    PoolBase(("granite-4.1-3b",), "granite", "qwen25", CHATML.replace("CALLS", "<tool_call>")),
    PoolBase(("Olmo-3-7B-Instruct",), "olmo3", "olmo", CHATML.replace("CALLS", "<function_calls>")),
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
        "gemma4_text",
        "qwen25",
        None,
        {
            "hidden_size_per_layer_input": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 16,
        },
    ),
)
SPECIAL = (
    *("<pad>", "<|im_start|>", "<|im_end|>", "<bos>"),
    *("<tool_call>", "</tool_call>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<function_calls>", "</function_calls>", "<start_of_turn>", "<end_of_turn>"),
)


def make_folder(base: PoolBase, folder: Path) -> PreTrainedTokenizerBase:
    """Write `base` with a hash for a name, as jobs have it; returns its tokenizer."""
    tokenizer = vocabularies.fast(
        vocabularies.qwen(SPECIAL, 4096),
        base.template,
        bos_token="<bos>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
    )
    tokenizer.save_pretrained(folder)
    sizes = {**SMALL, "vocab_size": len(tokenizer), **base.sizes}
    if base.kind == "gemma4_text":
        sizes["vocab_size_per_layer_input"] = len(tokenizer)
    config = AutoConfig.for_model(
        base.kind,
        **sizes,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return tokenizer
