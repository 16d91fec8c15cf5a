"""Every row of an episode is trained: gradients against TRL's own loss of each row by hand."""

import asyncio
from types import MethodType

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from miner.config.settings import RewardSettings, Settings
from miner.distributed.ranks import Ranks
from miner.inference.sampler import SamplingParams
from miner.learning.trainer import EpisodeTrainer, grpo_config
from miner.rewards.advantages import turn_advantages
from miner.rollout.episode import EpisodeParams, play_episode
from miner.rollout.groups import GroupResult
from miner.rollout.renderer import ChatRenderer
from miner.training.episodes import encode_task
from miner.training.rollout_function import RolloutFunction, episode_reward
from tests.builders import (
    CHATML,
    THINK_STRIPPING,
    CountingEnvironment,
    ScriptedSampler,
    build_qwen3,
    build_sample,
    build_task,
    build_tokenizer,
)

GROUP = 4
WAYS = {
    "forked": (THINK_STRIPPING, ()),
    "fresh chats": (CHATML, ["in a fresh chat"] * 3),
    "one row": (CHATML, ()),
}


def episodes_of(template, goes_on):
    """A group whose members play one to four rounds with replies of different lengths."""
    tokenizer = build_tokenizer(template)
    renderer = ChatRenderer(tokenizer)

    def played(member):
        texts = iter([f"<think>{member}</think>{t}" for t in "1x23"[member:]])

        def reply(prompt):
            ids = tokenizer(next(texts), add_special_tokens=False)["input_ids"]
            return build_sample([*ids, tokenizer.eos_token_id])

        environment = CountingEnvironment(4 - member, goes_on=goes_on)
        params = EpisodeParams(SamplingParams(max_tokens=16), max_tokens=4000)
        sampler = ScriptedSampler(reply)
        episode = play_episode(environment, build_task(), sampler, renderer, params)
        return asyncio.run(episode)

    return tokenizer, [played(member) for member in range(GROUP)]


def step_of(tmp_path, tokenizer, episodes, credit):
    """A trainer, and TRL's batch of a step that consists of these episodes."""
    settings = Settings.load(
        None,
        [
            f"run_dir={tmp_path}",
            "rollout.groups_per_step=1",
            f"rollout.group_size={GROUP}",
            "optimizer.micro_batch_tokens=150",
        ],
        environ={},
    )
    reward = RewardSettings(credit=credit, invalid_reply_penalty=0.25)
    rollout = RolloutFunction(
        lambda groups: [GroupResult(groups[0], tuple(episodes))],
        reward,
        tokenizer.eos_token_id,
        Ranks(),
    )
    prompts = [encode_task(build_task())] * GROUP
    trainer = EpisodeTrainer(
        model=build_qwen3(vocab_size=len(tokenizer)),
        args=grpo_config(settings),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        reward_funcs=[episode_reward],
        rollout_func=rollout,
        credit=credit,
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer, trainer._prepare_inputs([{"prompt": prompt} for prompt in prompts])


def advantages_of(episodes, credit):
    """Per episode and turn, from scores and penalties alone."""
    turns = [[0.0 if turn.valid else -0.25 for turn in one.turns] for one in episodes]
    totals = torch.tensor([one.score + sum(own) for one, own in zip(episodes, turns, strict=True)])
    if credit == "episode":
        normal = (totals - totals.mean()) / (totals.std() + 1e-4)
        return [[float(a)] * len(one.turns) for a, one in zip(normal, episodes, strict=True)]
    for one, own in zip(episodes, turns, strict=True):
        own[-1] += one.score
    numbered = []
    for one, own in zip(episodes, turns, strict=True):
        played = [sum(turn.valid for turn in one.turns[:number]) for number in range(len(own))]
        numbered.append(list(zip(played, own, strict=True)))
    return turn_advantages(numbered, GROUP)


def by_hand(trainer, episodes, credit):
    """Loss and gradients of all rows, one by one and without padding, by TRL's own loss."""
    tokens = sum(sum(row.loss_mask) for one in episodes for row in one.rows)
    total = 0.0
    trainer.model.zero_grad()
    scored = MethodType(GRPOTrainer._get_per_token_logps_and_entropies, trainer)
    trainer._get_per_token_logps_and_entropies = scored
    for one, advantages in zip(episodes, advantages_of(episodes, credit), strict=True):
        for row in one.rows:
            by_token = [advantages[turn] if turn >= 0 else 0.0 for turn in row.turn_ids]
            prompt, completion = torch.tensor([row.prompt_ids]), torch.tensor([row.completion_ids])
            loss = GRPOTrainer._compute_loss(
                trainer,
                trainer.model,
                {
                    "prompt_ids": prompt,
                    "prompt_mask": torch.ones_like(prompt),
                    "completion_ids": completion,
                    "completion_mask": torch.ones_like(completion),
                    "tool_mask": torch.tensor([row.loss_mask]),
                    "advantages": torch.tensor([by_token]),
                    "num_items_in_batch": torch.tensor(tokens),
                },
            )
            loss.backward()
            total += loss.item()
    del trainer._get_per_token_logps_and_entropies
    return total, [p.grad.clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_that_of_all_rows_by_hand(tmp_path, way, credit):
    tokenizer, episodes = episodes_of(*WAYS[way])
    rows = [len(one.rows) for one in episodes]
    assert rows == ([1] * GROUP if way == "one row" else [4, 3, 2, 1])
    trainer, batch = step_of(tmp_path, tokenizer, episodes, credit)
    assert len(batch["completion_ids"]) == sum(rows)
    expected, expected_gradients = by_hand(trainer, episodes, credit)
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    trainer.accelerator.backward(loss)
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert max(g.abs().max() for g in expected_gradients) > 1e-4
    for mine, theirs in zip(
        (p.grad for p in trainer.model.parameters()), expected_gradients, strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def test_each_sampled_token_is_trained_once(tmp_path):
    tokenizer, episodes = episodes_of(*WAYS["forked"])
    _, batch = step_of(tmp_path, tokenizer, episodes, "episode")
    trained = (batch["tool_mask"] * batch["completion_mask"]).bool()
    said = sorted(batch["completion_ids"][trained].tolist())
    kept = [row for one in episodes for row in one.rows]
    sampled = [
        i for row in kept for i, m in zip(row.completion_ids, row.loss_mask, strict=True) if m
    ]
    assert said == sorted(sampled)
    assert len(said) == sum(one.sampled_tokens for one in episodes)
    assert batch["num_items_in_batch"] == len(said)


def test_rows_without_their_turns_are_refused(tmp_path):
    tokenizer, episodes = episodes_of(*WAYS["forked"])
    trainer, _ = step_of(tmp_path, tokenizer, episodes, "episode")
    whole = trainer.rollout_func

    def forgetful(prompts, trainer):
        columns = whole(prompts, trainer)
        return columns | {"turn_ids": [rows[:1] for rows in columns["turn_ids"]]}

    trainer.rollout_func = forgetful
    prompts = [{"prompt": encode_task(build_task())} for _ in range(GROUP)]
    with pytest.raises(ValueError, match="10 rows and turn_ids of 4"):
        trainer._generate_and_score_completions(prompts)
