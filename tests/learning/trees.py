"""Trainers of scripted rows that begin alike, ours and TRL's own, for tests of trees."""

from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOTrainer

from miner.config.settings import Settings
from miner.learning.trainer import EpisodeTrainer, grpo_config
from tests.builders import build_qwen3, build_tokenizer

LENGTHS = [(4, 9), (6, 30), (2, 5), (6, 12), (5, 17), (3, 6), (1, 1), (6, 27)]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]
BUDGET = 45
WHOLE = 1_000_000
"""Tokens that any step fits into: one pass."""


def make_trainer(tmp_path, budget, *, model=None, corrected=False, trl=False, columns=None, **more):
    """Two steps of two groups of four. The reference model, which TRL loads from where a model came
    from, is another one.

    Args:
        trl: TRL's own trainer, which pads all rows and scores an engine's before it learns.
        columns: see `rollout`.
        more: settings of the optimizer, and arguments of our trainer.
    """
    ours = {name: more.pop(name) for name in ("gather", "after_pass") if name in more}
    optimizer = {"max_steps": 2, "micro_batch_tokens": budget} | more
    wanted = [f"run_dir={tmp_path}", "rollout.groups_per_step=2", "rollout.group_size=4"]
    wanted += [f"optimizer.{name}={value}" for name, value in optimizer.items()]
    settings = Settings.load(None, wanted, environ={})
    model, reference = model or build_qwen3(), tmp_path / "reference"
    build_qwen3(seed=1).save_pretrained(reference)
    model.config._name_or_path = str(reference)
    args = grpo_config(settings)
    common = {
        "model": model,
        "args": args,
        "processing_class": build_tokenizer(),
        "train_dataset": Dataset.from_dict({"prompt": list("abcdefgh")}),
        "reward_funcs": [lambda episode_reward, **_: episode_reward],
        "rollout_func": lambda prompts, trainer: columns or rollout(),
    }
    if not trl:
        trainer = EpisodeTrainer(**common, tokens_per_pass=budget, **ours)
        trainer.learn_from(common["rollout_func"], corrected=corrected)
        return trainer
    args.vllm_importance_sampling_correction = True
    args.vllm_importance_sampling_mode = "token_truncate"
    trainer = GRPOTrainer(**common)
    if corrected:
        trainer.use_vllm = True
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer._last_loaded_step = -1
    return trainer


def rollout(lengths=LENGTHS, share=0.6):
    """Rows of these lengths, of which each begins as a part of another does; every third token of
    a completion is sampled."""
    draw = np.random.default_rng(1)
    rows = []
    for prompt, completion in lengths:
        tokens = draw.integers(2, 300, prompt + completion).tolist()
        if rows:
            other = rows[draw.integers(len(rows))]
            begin = int(share * min(len(other), len(tokens)))
            tokens[:begin] = other[:begin]
        rows.append(tokens)
    return {
        "prompt_ids": [row[:prompt] for row, (prompt, _) in zip(rows, lengths, strict=True)],
        "completion_ids": [row[prompt:] for row, (prompt, _) in zip(rows, lengths, strict=True)],
        "logprobs": [[-6.0 - i % 2 for i in range(completion)] for _, completion in lengths],
        "env_mask": [[int(i % 3 == 0) for i in range(completion)] for _, completion in lengths],
        "turn_ids": [[[0] * completion] for _, completion in lengths],
        "episode_reward": REWARDS[: len(lengths)],
    }


def batch(trainer, shuffled=True):
    """TRL's batch of a rollout, with old logprobs that have some ratios clipped."""
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    torch.manual_seed(0)
    return trainer._prepare_inputs([{"prompt": p} for p in "aaaabbbb"])


def learned(trainer, rows=None):
    """Loss, gradients and metrics of one step's backward, and the forwards that the step takes,
    each of (lines, tokens)."""
    shapes = []

    def note(module, args, kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))

    inner = trainer.accelerator.unwrap_model(trainer.model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    hook = inner.base_model.register_forward_pre_hook(note, with_kwargs=True)
    rows = rows or batch(trainer)
    before = {name: len(values) for name, values in trainer._metrics["train"].items()}
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, rows)
    trainer.accelerator.backward(loss)
    hook.remove()
    metrics = {n: v[before.get(n, 0) :] for n, v in trainer._metrics["train"].items()}
    gradients = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    return loss.item(), gradients, {n: v for n, v in metrics.items() if v}, shapes
