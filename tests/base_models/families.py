"""Model folders as validators hand them over: real vocabularies and templates, tiny weights.

The templates are those that TRL ships for tests of its own kind, and for Mistral one written from
what its template is known for: the system text goes into the last user turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from tests.base_models import vocabularies
from tests.builders import trl_template

MISTRAL_TEMPLATE = (
    "{{ bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}"
    "{%- for message in turns %}{% if message['role'] == 'user' %}"
    "{{ '[INST]' }}{{ system + '\\n\\n' if loop.last and system is defined else '' }}"
    "{{ message['content'] + '[/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """One kind of base model.

    Attributes:
        changes: words of what is mended in its template, one for each change.
        calls_tools: whether its template shows tools.
        ends: token that its generation_config.json names for the end of a reply, besides EOS.
    """

    name: str
    config: type[PretrainedConfig]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    changes: tuple[str, ...] = ()
    calls_tools: bool = True
    ends: str | None = None


def _chatml(
    template: str, size: int | None = vocabularies.BEGINNING
) -> Callable[[], PreTrainedTokenizerBase]:
    return lambda: vocabularies.fast(
        vocabularies.qwen(vocabularies.QWEN_SPECIAL, size),
        trl_template(template),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def _llama(
    template: str | None, size: int | None = vocabularies.BEGINNING
) -> Callable[[], PreTrainedTokenizerBase]:
    return lambda: vocabularies.fast(
        vocabularies.llama3(size),
        trl_template(template) if template else None,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
    )


def _mistral() -> PreTrainedTokenizerBase:
    return vocabularies.fast(
        vocabularies.mistral(), MISTRAL_TEMPLATE, bos_token="<s>", eos_token="</s>"
    )


def _gemma() -> PreTrainedTokenizerBase:
    """Gemma's template and special tokens over Qwen's vocabulary: its own is in no package."""
    return vocabularies.fast(
        vocabularies.qwen(vocabularies.GEMMA_SPECIAL, vocabularies.BEGINNING),
        trl_template("gemma"),
        bos_token="<bos>",
        eos_token="<eos>",  # as theirs, whose replies end with <end_of_turn>
        pad_token="<pad>",
    )


FAMILIES = (
    Family("qwen2.5", Qwen2Config, _chatml("qwen2_5", size=None)),
    Family("qwen3", Qwen3Config, _chatml("qwen3"), ("thinking", "keep their form")),
    Family("qwen3-2507", Qwen3Config, _chatml("qwen3_instruct_2507")),
    Family("llama-3", LlamaConfig, _llama("llama3"), calls_tools=False),
    Family("llama-3.2", LlamaConfig, _llama("llama3_2"), ("date",)),
    Family("no-template", LlamaConfig, _llama(None), ("no chat template",), calls_tools=False),
    Family("mistral", MistralConfig, _mistral, ("system text",), calls_tools=False),
    Family("gemma", GemmaConfig, _gemma, ("system text",), False, "<end_of_turn>"),
)


def make_folder(family: Family, folder: Path) -> PreTrainedTokenizerBase:
    """Write a base model of `family` with random weights; returns its tokenizer."""
    tokenizer = family.tokenizer()
    tokenizer.save_pretrained(folder)
    config = family.config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    if family.ends:
        ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(family.ends)]
        model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    return tokenizer
