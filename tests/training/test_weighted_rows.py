"""Rows that nobody sampled: their loss is a cross-entropy, divided by the weights of all."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from miner.learning.trainer import EpisodeTrainer
from miner.reporting.records import TARGET_KL
from tests.learning.test_trainer import make_trainer

PROMPT, SAMPLED, LEGAL, OTHER = [5, 6], [7, 8, 9, 1], [20, 1], [21, 22, 1]
WEIGHTS, ENTROPIES = (0.75, 0.25), (0.1, 0.3)


def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """Four one-turn episodes, each followed by two legal replies that were not sampled."""
    count = len(prompts)
    unsampled = [[math.nan] * len(reply) for reply in (LEGAL, OTHER)]
    return {
        "prompt_ids": [PROMPT] * 3 * count,
        "completion_ids": [SAMPLED, LEGAL, OTHER] * count,
        "logprobs": [[-1.0] * 4, *unsampled] * count,
        "env_mask": [[1, 1, 0, 0], [1, 1], [1, 1, 1]] * count,
        "turn_ids": [[[0, 0, -1, -1], [-1, -1], [-1, -1, -1]]] * count,
        "weights": [[None, *WEIGHTS]] * count,
        "entropies": [[0.0, *ENTROPIES]] * count,
        "turn_rewards": [[(0, float(number % 2))] for number in range(count)],
        "episode_reward": [float(number % 2) for number in range(count)],
    }


def cross_entropy(model: torch.nn.Module, reply: list[int]) -> torch.Tensor:
    ids = torch.tensor([PROMPT + reply])
    logprobs = (model(input_ids=ids).logits[0] / 0.7).log_softmax(-1)  # make_trainer's temperature
    at = range(len(PROMPT) - 1, len(PROMPT) + len(reply) - 1)
    total = sum(logprobs[position, token] for position, token in zip(at, reply, strict=True))
    return -torch.as_tensor(total)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def learned(trainer: EpisodeTrainer) -> list[torch.Tensor]:
    """Gradients of a step, which the model has no more."""
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    model.zero_grad()
    trainer.compute_loss(model, output).backward()
    found = gradients(model)
    model.zero_grad()
    return found


def test_all_moves_learn_the_target_and_nothing_of_what_was_sampled(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rollout, credit="all_moves")
    ours, model = learned(trainer), trainer.model
    [recorded] = trainer._metrics["train"][TARGET_KL]
    target = torch.as_tensor(
        sum(w * cross_entropy(model, r) for w, r in zip(WEIGHTS, (LEGAL, OTHER), strict=True))
    )
    assert recorded == pytest.approx(target.item() - sum(ENTROPIES), 1e-4)
    target.backward()
    for mine, expected in zip(ours, gradients(model), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-4)
    assert max(g.abs().max() for g in ours) > 1e-3


def test_rows_without_targets_are_learned_and_no_part_of_the_distance(tmp_path: Path) -> None:
    """Of mounted data, whose rows are long and weigh little."""
    reply = [30] * 40

    def beside_data(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        columns = rollout(prompts, trainer)
        by_row = {"prompt_ids": PROMPT, "completion_ids": reply, "env_mask": [1] * 40}
        for name, value in (by_row | {"logprobs": [math.nan] * 40}).items():
            columns[name] = [*columns[name], value]
        for name, value in {"turn_ids": [-1] * 40, "weights": 0.5, "entropies": None}.items():
            columns[name] = [*columns[name][:-1], [*columns[name][-1], value]]
        return columns

    def data_alone(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        columns = beside_data(prompts, trainer)
        return columns | {"entropies": [[None] * len(one) for one in columns["entropies"]]}

    alone, beside, without = (
        make_trainer(tmp_path, each, credit="all_moves")
        for each in (rollout, beside_data, data_alone)
    )
    _, ours, _ = (learned(each) for each in (alone, beside, without))
    [distance], [measured] = (each._metrics["train"][TARGET_KL] for each in (alone, beside))
    assert measured == pytest.approx(distance, 1e-5)
    assert TARGET_KL not in without._metrics["train"]
    model = beside.model
    moves = zip(WEIGHTS, (LEGAL, OTHER), strict=True)
    parts = [(4 * weight, move) for weight, move in moves] + [(0.5, reply)]
    torch.as_tensor(sum(w * cross_entropy(model, part) for w, part in parts) / 4.5).backward()
    for mine, expected in zip(ours, gradients(model), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-3)


def test_beside_one_advantage_an_episode_weighted_rows_keep_their_own(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rollout, credit="episode")
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    tokens, weight = output["num_items_in_batch"].item(), 4 * sum(WEIGHTS)
    advantages = output["advantages"]
    assert tokens == 4 * 7
    assert advantages[0, 0] < 0 < advantages[3, 0]  # the rewards are 0 and 1
    assert advantages[1::3, 0].tolist() == pytest.approx([WEIGHTS[0] * tokens / weight] * 4)
    assert advantages[2::3, 0].tolist() == pytest.approx([WEIGHTS[1] * tokens / weight] * 4)


def test_with_credit_for_all_moves_sampled_turns_have_no_advantage(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rollout, credit="all_moves")
    trainer.model.train()
    ours = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    assert not ours["advantages"][slice(0, None, 3)].any()
    assert ours["advantages"][1::3].all()


def test_by_policy_a_reply_counts_as_often_as_the_policy_gives_it(tmp_path: Path) -> None:
    """The loss is the mean over decisions of the sum of probability times advantage, by PyTorch's
    own way."""
    advantages = (2.0, -3.0)

    def valued(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        weights = [[None, *advantages]] * len(prompts)
        by_policy = [True] * len(prompts)
        return rollout(prompts, trainer) | {"weights": weights, "by_policy": by_policy}

    trainer = make_trainer(tmp_path, valued, credit="all_moves")
    ours, model = learned(trainer), trainer.model
    assert TARGET_KL not in trainer._metrics["train"]
    replies = zip(advantages, (LEGAL, OTHER), strict=True)
    probabilities = [a * (-cross_entropy(model, reply)).exp() for a, reply in replies]
    torch.as_tensor(-sum(probabilities)).backward()
    largest = max(g.abs().max() for g in ours)
    assert largest > 0
    for mine, expected in zip(ours, gradients(model), strict=True):
        torch.testing.assert_close(mine / largest, expected / largest, atol=1e-4, rtol=1e-3)


def test_targets_are_a_mean_over_the_decisions_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a second process had brought the same rows."""
    alone, two = (make_trainer(tmp_path, rollout, credit="all_moves") for _ in range(2))
    two._gather_values = lambda value: [value, value]
    monkeypatch.setattr(two.accelerator, "reduce", lambda values, reduction="sum": 2 * values)
    for whole, half in zip(learned(alone), learned(two), strict=True):
        torch.testing.assert_close(half, whole / 2, atol=1e-6, rtol=1e-4)
    [distance], [shared] = (each._metrics["train"][TARGET_KL] for each in (alone, two))
    assert shared == pytest.approx(distance)
