"""The loss of the warm start: that of the whole model, with its gradients."""

import random
from contextlib import nullcontext

import pytest
import torch

from miner.tiny_model import warm_start
from miner.tiny_model.build import Recipe, recipe_tokenizer
from miner.tiny_model.examples import Encoder
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.number_following import draw_conversation


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_less_work_in_the_last_layer_changes_neither_loss_nor_gradients(layers, monkeypatch):
    recipe = Recipe(network=NetworkRecipe(layers=layers))
    tokenizer, rng = recipe_tokenizer(recipe), random.Random(0)
    model = build_network(tokenizer, recipe.network, seed=0)
    drawn = [draw_conversation(rng, recipe.data) for _ in range(5)]
    examples = Encoder(tokenizer).encode(drawn, rng)

    def losses():
        model.zero_grad()
        loss, divergence = warm_start.batch_loss(model, examples, recipe.warm_start)
        loss.backward()
        return [loss, torch.tensor(divergence), *(p.grad.clone() for p in model.parameters())]

    less = losses()
    monkeypatch.setattr(warm_start, "last_layer_at", lambda *_: nullcontext())
    for mine, whole in zip(less, losses(), strict=True):
        tolerance = 1e-3 * float(whole.detach().abs().max())
        torch.testing.assert_close(mine, whole, rtol=1e-3, atol=tolerance)


def test_each_answer_is_read_from_the_token_before_it():
    recipe = Recipe()
    tokenizer, rng = recipe_tokenizer(recipe), random.Random(0)
    model = build_network(tokenizer, recipe.network, seed=0)
    drawn = [draw_conversation(rng, recipe.data) for _ in range(3)]
    examples = Encoder(tokenizer).encode(drawn, rng)
    with torch.no_grad():
        _, divergence = warm_start.batch_loss(model, examples, recipe.warm_start)
    expected = []
    for example in examples:  # alone, so that nothing fills it up
        [logits] = model(input_ids=torch.tensor([example.ids])).logits.detach()
        for at, (options, shares) in zip(example.positions, example.answers, strict=True):
            log_p, wanted = logits[at].log_softmax(-1)[list(options)], torch.tensor(shares)
            expected.append(torch.special.xlogy(wanted, wanted).sum() - wanted @ log_p)
    assert divergence == pytest.approx(float(torch.stack(expected).mean()), rel=1e-4)
