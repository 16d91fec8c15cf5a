"""A trainer whose episodes differ in length, for tests of passes by a budget of tokens."""

import torch
from datasets import Dataset

from miner.config.settings import load_settings
from miner.training.trainer import EpisodeTrainer, grpo_config
from tests.builders import build_qwen3, build_tokenizer

LENGTHS = [(4, 9), (6, 30), (2, 5), (6, 12), (5, 17), (3, 6), (1, 1), (6, 27)]
BUDGET = 60
WHOLE = 1_000_000
"""Tokens that any step fits into: one pass."""


def make_trainer(tmp_path, budget, *, agree=lambda passes: passes, sync_weights=None, **optimizer):
    """Two steps of two groups of four. The reference model, which TRL loads from where a model came
    from, is another one."""
    optimizer = {"max_steps": 2, "micro_batch_tokens": budget} | optimizer
    wanted = [f"run_dir={tmp_path}", "rollout.groups_per_step=2", "rollout.group_size=4"]
    wanted += [f"optimizer.{name}={value}" for name, value in optimizer.items()]
    settings = load_settings(None, wanted, environ={})
    model, reference = build_qwen3(), tmp_path / "reference"
    build_qwen3(seed=1).save_pretrained(reference)
    model.config._name_or_path = str(reference)
    return EpisodeTrainer(
        model=model,
        args=grpo_config(settings),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": list("abcdefgh")}),
        reward_funcs=[lambda episode_reward, **_: episode_reward],
        rollout_func=rollout,
        learning_rate_factor=lambda step: 1.0,
        sync_weights=sync_weights,
        tokens_per_pass=budget,
        agree=agree,
    )


def rollout(prompts, trainer):
    """Episodes of very different lengths; every third token is sampled."""
    draw = torch.Generator().manual_seed(1)
    ids = [[torch.randint(2, 300, (n,), generator=draw).tolist() for n in row] for row in LENGTHS]
    return {
        "prompt_ids": [prompt for prompt, _ in ids],
        "completion_ids": [completion for _, completion in ids],
        "logprobs": [[-6.0] * completion for _, completion in LENGTHS],
        "env_mask": [[int(i % 3 == 0) for i in range(completion)] for _, completion in LENGTHS],
        "turn_ids": [[[0] * completion] for _, completion in LENGTHS],
        "episode_reward": [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25],
    }
