"""The curriculum (look-up, then mixture), and how a base that knows a form only is trained."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from miner.tiny_model.curriculum import Curriculum, CurriculumRecipe
from miner.tiny_model.form import descend

RECIPE = CurriculumRecipe(
    steps=1000, mixture_steps=300, measure_every=50, short_steps=400, small_steps=100
)


def test_the_mixture_begins_where_the_look_up_is_there():
    curriculum = Curriculum(RECIPE)
    assert curriculum.steps == 1000
    assert curriculum.to_measure(200)
    assert not curriculum.to_measure(201)
    curriculum.measured(200, 0.94)
    assert curriculum.lesson(200).lookup
    curriculum.measured(250, 0.95)
    assert not curriculum.lesson(250).lookup
    assert curriculum.steps == 550
    assert not curriculum.to_measure(300)


def test_a_look_up_that_does_not_form_leaves_time_for_the_mixture():
    curriculum = Curriculum(RECIPE)
    for step in range(1, 700):
        if curriculum.to_measure(step):
            curriculum.measured(step, 0.5)
    assert curriculum.lesson(699).lookup
    assert curriculum.to_measure(700)
    curriculum.measured(700, 0.5)
    assert not curriculum.lesson(700).lookup
    assert curriculum.steps == 1000


def test_few_steps_are_halved_between_the_two():
    curriculum = Curriculum(CurriculumRecipe(steps=101, mixture_steps=1000))
    assert curriculum.to_measure(50)
    curriculum.measured(50, 0.0)
    assert curriculum.steps == 101


def test_short_sheets_fade_out_and_large_sizes_come_last():
    curriculum = Curriculum(RECIPE)
    curriculum.measured(250, 1.0)
    shares = [curriculum.lesson(step).short for step in (0, 200, 400, 500)]
    assert shares == pytest.approx([0.8, 0.4, 0.0, 0.0])
    assert curriculum.lesson(0).small
    assert curriculum.lesson(349).small
    assert not curriculum.lesson(350).small


def test_the_learning_rate_rises_stays_and_falls_with_the_mixture():
    curriculum = Curriculum(RECIPE)
    assert curriculum.rate(0) == pytest.approx(1 / 50)
    assert curriculum.rate(600) == 1.0
    curriculum.measured(600, 1.0)
    assert curriculum.rate(600) == 1.0
    assert curriculum.rate(750) == pytest.approx(0.51)
    assert 0.02 <= curriculum.rate(899) < 0.03


def test_the_learning_rate_rises_early_and_then_falls_to_nothing() -> None:
    """With a gradient that stays, a step of Adam's is as long as the rate."""
    model: Any = torch.nn.Linear(1, 1, bias=False)
    seen = [float(model.weight.detach())]
    descend(
        model,
        lambda: model.weight.sum(),
        steps=100,
        learning_rate=0.1,
        progress=lambda step, loss: seen.append(float(model.weight.detach())),
    )
    lengths = [before - after for before, after in pairwise(seen)]
    longest = lengths.index(max(lengths))
    assert 0 < longest < 50
    assert lengths[0] < 0.1 * lengths[longest]
    assert lengths[-1] < 0.01 * lengths[longest]
    assert not model.training
