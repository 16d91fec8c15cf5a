"""The network: a two-layer Qwen3 whose number tokens start out ordered by value.

Pretrained language models represent numbers by sinusoidal features of their value (Zhou et al.,
"Pre-trained Large Language Models Use Fourier Features to Compute Addition", 2024). A tiny model
learns that too, but in more minutes than a laptop demo has; here it is the starting point.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

_PERIODS = (2, 2.5, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224)
LONGEST_SPELLED = 16
"""Characters at most of a token that has features of its spelling: no prose."""

_OPTION = re.compile(r"\n?(\d+) ->.*")
_NUMBER = re.compile(r" ?(-?\d+)")
_LABELLED = re.compile(r"\n[^\n\d:]+: (\d+)")
_FORMS = (_OPTION, _NUMBER, _LABELLED)


@dataclass(frozen=True, slots=True)
class NetworkRecipe:
    """Size and initialisation.

    Attributes:
        initializer_range: the default of 0.02 is too small for so few steps.
        rope_theta: below the usual 10,000: more of the few frequencies distinguish a sheet's
            tokens from those of the sheet before.
        number_features: size of the features of number tokens, 0 for none.
        number_names: size of a random direction that all tokens of a number share, so that an id in
            a list is easily repeated; 0 for none.
        spelling_features: size of those of short tokens' characters, each at its place; 0 for none.
        query_scale: initial weight of the query norms; above 1 attention starts out sharper.
    """

    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 32
    initializer_range: float = 0.08
    rope_theta: float = 1000.0
    number_features: float = 0.15
    number_names: float = 0.0
    spelling_features: float = 0.0
    query_scale: float = 1.5


def build_network(
    tokenizer: PreTrainedTokenizerBase, recipe: NetworkRecipe, seed: int
) -> Qwen3ForCausalLM:
    """A freshly initialised model in float32, a pure function of its arguments."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        head_dim=recipe.head_dim,
        initializer_range=recipe.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
        directions = torch.linalg.qr(torch.randn(recipe.hidden_size, 2 * len(_PERIODS)))[0]
    embeddings = model.get_input_embeddings().weight.data
    drawn = cache(lambda thing: _direction(thing, seed, recipe.hidden_size))
    for index in range(len(tokenizer)):
        token = str(tokenizer.decode([index]))
        value = _value(token)
        if value is not None:
            embeddings[index] += recipe.number_features * (directions @ _features(value))
            embeddings[index] += recipe.number_names * drawn(value)
        elif len(token) <= LONGEST_SPELLED:
            for place in enumerate(token):
                embeddings[index] += recipe.spelling_features * drawn(place)
    for layer in model.model.layers:
        layer.self_attn.q_norm.weight.data.fill_(recipe.query_scale)
    return model


def _direction(thing: object, seed: int, size: int) -> torch.Tensor:
    """A random direction of length 1 for a number, or for a character at its place."""
    rng = Random(f"{seed} {thing}")
    drawn = torch.tensor([rng.gauss(0, 1) for _ in range(size)])
    return drawn / drawn.norm()


def _value(token: str) -> int | None:
    """The number that a token is or ends in after its label, or the id of an option line."""
    match = next(filter(None, (form.fullmatch(token) for form in _FORMS)), None)
    return int(match[1]) if match else None


def _features(value: int) -> torch.Tensor:
    """Shape (2 x periods,): cosine and sine of the value, per period."""
    angles = torch.tensor([2 * math.pi * value / period for period in _PERIODS])
    return torch.cat([angles.cos(), angles.sin()])
