"""The trainer's overrides against the behaviour of TRL's own."""

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from miner.training.settings import load_settings
from miner.training.trainer import EpisodeTrainer, grpo_config, spread_over_tokens, without_padding
from tests.builders import build_qwen3, build_tokenizer


def make_trainer(tmp_path, rollout_func=None, **kwargs):
    settings = load_settings(
        None,
        [
            f"run_dir={tmp_path}",
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "rollout.temperature=0.7",
            "optimizer.micro_batch=4",
            "optimizer.max_steps=2",
        ],
        environ={},
    )
    return EpisodeTrainer(
        model=build_qwen3(),
        args=grpo_config(settings),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"] * 4}),
        reward_funcs=[lambda episode_reward, **_: episode_reward],
        rollout_func=rollout_func or (lambda prompts, trainer: None),
        learning_rate_factor=lambda step: 1.0,
        **kwargs,
    )


def batch(prompt_pad=3, completion_pad=4):
    """Two rows with padding on both sides; a third of the completion is sampled."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, 300, (2, 6), generator=generator)
    completion = torch.randint(2, 300, (2, 12), generator=generator)
    prompt_mask, completion_mask = torch.ones_like(prompt), torch.ones_like(completion)
    prompt_mask[:, :prompt_pad] = 0
    completion_mask[:, 12 - completion_pad :] = 0
    completion_mask[1, 6:] = 0
    tool_mask = (torch.arange(12) % 3 == 0).long().repeat(2, 1)
    return {
        "prompt_ids": prompt,
        "prompt_mask": prompt_mask,
        "completion_ids": completion,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([0.5, -1.0]),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


def loss_and_gradients(trainer, compute):
    model = trainer.model.train()
    model.zero_grad()
    loss = compute(trainer, model, batch())
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


def test_loss_and_gradients_equal_trls(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.current_gradient_accumulation_steps = 1
    theirs, their_gradients = loss_and_gradients(trainer, GRPOTrainer._compute_loss)
    ours, our_gradients = loss_and_gradients(trainer, EpisodeTrainer._compute_loss)
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert any(g.abs().max() > 1e-4 for g in their_gradients)
    for mine, their in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, their, atol=1e-5, rtol=1e-4)
    entropies = trainer._metrics["train"]["entropy"]
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-5)


def test_columns_that_are_padding_in_all_rows_go_and_no_others():
    trimmed = without_padding(batch(prompt_pad=3, completion_pad=4))
    assert trimmed["prompt_ids"].shape == trimmed["prompt_mask"].shape == (2, 3)
    assert trimmed["completion_ids"].shape == trimmed["tool_mask"].shape == (2, 8)
    assert trimmed["prompt_mask"].all()
    assert trimmed["completion_mask"].sum() == batch()["completion_mask"].sum()
    assert trimmed["advantages"].shape == (2,)


def test_tokens_get_their_turns_advantage_and_others_none():
    spread = spread_over_tokens(
        [[0.5, -2.0], []], [[0, 0, -1, 1], [-1]], completion_ids=torch.zeros(2, 6)
    )
    assert spread.tolist() == [[0.5, 0.5, 0.0, -2.0, 0.0, 0.0], [0.0] * 6]


def fixed_rollout(rewards):
    """Four one-turn episodes of two groups, with these rewards."""

    def rollout(prompts, trainer):
        count = len(prompts)
        return {
            "prompt_ids": [[5, 6]] * count,
            "completion_ids": [[7, 8, 9, 1]] * count,
            "logprobs": [[0.0] * 4] * count,
            "env_mask": [[1, 0, 1, 0]] * count,
            "turn_ids": [[0, -1, 1, -1]] * count,
            "turn_rewards": [[(0, 0.0), (1, r)] if r is not None else None for r in rewards],
            "episode_reward": list(rewards),
        }

    return rollout


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.5, 0.5], [1.0, None, 0.0, 0.75]])
def test_with_terminal_rewards_turn_credit_equals_trls_episode_credit(tmp_path, rewards):
    inputs = [{"prompt": p} for p in "aabb"]
    advantages = {}
    for credit in ("episode", "turn"):
        trainer = make_trainer(tmp_path, fixed_rollout(rewards), credit=credit, scale="group")
        trainer.model.train()
        output = trainer._generate_and_score_completions([dict(row) for row in inputs])
        advantages[credit] = output["advantages"]
    sampled = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    expected = advantages["episode"].unsqueeze(1) * sampled
    torch.testing.assert_close(advantages["turn"], expected, atol=1e-5, rtol=1e-4)


def test_the_learning_rate_follows_the_given_factor(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer._learning_rate_factor = lambda step: 0.25
    trainer.create_optimizer_and_scheduler(10)
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0.25 * trainer.args.learning_rate)
