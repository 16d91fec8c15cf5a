"""States at a few positions: those of the whole model, with its gradients."""

import random

import pytest
import torch

from miner.tiny_model.build import Recipe, recipe_tokenizer
from miner.tiny_model.examples import Encoder, collate
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.number_following import draw_conversation
from miner.tiny_model.states import states_at


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_they_and_their_gradients_are_the_model_s_own(layers):
    recipe = Recipe(network=NetworkRecipe(layers=layers))
    tokenizer, rng = recipe_tokenizer(recipe), random.Random(0)
    model = build_network(tokenizer, recipe.network, seed=0)
    drawn = [draw_conversation(rng, recipe.data) for _ in range(5)]
    batch = collate(Encoder(tokenizer).encode(drawn, rng), model.config.vocab_size)
    weights = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def found(states):
        model.zero_grad()
        (states[batch.real] @ weights).square().sum().backward()
        return states.detach(), [p.grad.clone() for p in model.parameters()]

    whole = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    expected = found(whole[torch.arange(5)[:, None], batch.positions])
    states = found(states_at(model, batch.ids, batch.positions))
    torch.testing.assert_close(states[0], expected[0], rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(states[1], expected[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))
