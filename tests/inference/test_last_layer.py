"""The last layer at a few tokens: the same answers and gradients, less work."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel, Qwen3ForCausalLM

from miner.inference.transformers.last_layer import last_layer_at
from tests.builders import build_qwen3

IDS = torch.arange(3, 23).reshape(2, 10)
ROW, COLUMN = torch.tensor([0, 0, 1]), torch.tensor([4, 9, 6])


def gradients(model: PreTrainedModel, hidden: Tensor) -> dict[str, Tensor]:
    """Of some loss at the tokens alone."""
    model.zero_grad()
    model.get_output_embeddings()(hidden[ROW, COLUMN]).log_softmax(-1)[:, 7].sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@contextmanager
def counted(model: Qwen3ForCausalLM) -> Iterator[list[int]]:
    """Tokens that the last layer's queries, output and feed-forward network were computed at."""
    tokens: list[int] = []
    layer = model.model.layers[-1]
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, output: tokens.append(int(output.any(-1).sum()))
        )
        for module in (layer.self_attn.q_proj, layer.self_attn.o_proj, layer.mlp)
    ]
    yield tokens
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("adapters", [False, True])
def test_what_is_read_and_its_gradients_are_the_same(adapters: bool) -> None:
    model = build_qwen3(seed=1)
    if adapters:
        tuned = get_peft_model(
            model, LoraConfig(target_modules="all-linear", init_lora_weights=False)
        )
        model = tuned.get_base_model()
    plain = model.base_model(input_ids=IDS).last_hidden_state
    expected = gradients(model, plain)
    with counted(model) as tokens, last_layer_at(model, ROW, COLUMN):
        hidden = model.base_model(input_ids=IDS).last_hidden_state
    found = gradients(model, hidden)
    assert tokens == [3] * 3
    torch.testing.assert_close(hidden[ROW, COLUMN], plain[ROW, COLUMN])
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    with counted(model) as tokens:
        torch.testing.assert_close(model.base_model(input_ids=IDS).last_hidden_state, plain)
    assert tokens == [20] * 3


def test_a_mixture_of_experts_runs_as_ever() -> None:
    config = MixtralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    plain = model.base_model(input_ids=IDS).last_hidden_state
    with last_layer_at(model, ROW, COLUMN):
        torch.testing.assert_close(model.base_model(input_ids=IDS).last_hidden_state, plain)
