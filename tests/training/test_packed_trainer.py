"""Passes by a budget of tokens do what one pass over the whole batch does."""

import os
from contextlib import contextmanager

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest
import torch
from trl import GRPOTrainer

from miner.training.trainer import EpisodeTrainer
from tests.training.packed import BUDGET, LENGTHS, WHOLE, make_trainer, rollout


def batch(trainer):
    """What TRL makes of the rollout, with old logprobs that have some ratios clipped."""
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    rows = trainer._generate_and_score_completions([{"prompt": p} for p in "aaaabbbb"])
    noise = torch.randn(rows["completion_ids"].shape, generator=torch.Generator().manual_seed(2))
    rows["old_per_token_logps"] = score(trainer, rows) + 0.3 * noise
    return rows


def score(trainer, rows):
    """Logprobs without gradient, by way of TRL's batch size."""
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    keep = rows["completion_ids"].shape[1]
    with torch.no_grad():
        logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, keep, len(ids)
        )
    return logprobs * rows["completion_mask"]


@contextmanager
def forwards(trainer):
    """The shapes (rows, tokens) of what the trained model is given inside."""
    shapes = []

    def note(module, args, kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))

    hook = trainer.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    yield shapes
    hook.remove()


def learned(trainer, compute_loss=EpisodeTrainer.compute_loss):
    """Loss, gradients, metrics and forwards of one step's backward."""
    rows = batch(trainer)
    trainer._metrics["train"].clear()
    trainer.model.zero_grad()
    with forwards(trainer) as shapes:
        loss = compute_loss(trainer, trainer.model, rows)
        trainer.accelerator.backward(loss)
    gradients = [p.grad.clone() for p in trainer.model.parameters()]
    return loss.item(), gradients, dict(trainer._metrics["train"]), shapes


@pytest.mark.parametrize("sync_weights", [None, lambda: None], ids=["on-policy", "engine"])
@pytest.mark.parametrize(("beta", "bonus"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5)])
def test_gradient_and_metrics_are_those_of_trls_loss_in_one_pass(
    tmp_path, beta, bonus, sync_weights
):
    def made(budget):
        wanted = {"beta": beta, "entropy_bonus": bonus}
        return make_trainer(tmp_path, budget, sync_weights=sync_weights, **wanted)

    whole, whole_gradients, whole_metrics, whole_shapes = learned(
        made(WHOLE), GRPOTrainer.compute_loss
    )
    value, gradients, metrics, shapes = learned(made(BUDGET))
    assert len(whole_shapes) == 1
    assert len(shapes) > 3
    assert value == pytest.approx(whole, rel=1e-4, abs=1e-6)
    assert max(g.abs().max() for g in whole_gradients) > 1e-4
    for mine, theirs in zip(gradients, whole_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)
    of_bonus = {"entropy_coef", "policy_loss"} if bonus else set()
    assert metrics.keys() == whole_metrics.keys() - of_bonus
    for name, values in metrics.items():
        of_whole = pytest.approx(whole_metrics[name], rel=1e-4, abs=1e-6, nan_ok=True)
        assert values == of_whole, name
    assert whole_metrics["clip_ratio/region_mean"][0] > 0
    assert bool(beta) == (whole_metrics.get("kl", [0.0])[0] > 0)


def test_passes_keep_to_the_budget_with_and_without_gradient(tmp_path):
    trainer = make_trainer(tmp_path, BUDGET)
    *_, learning = learned(trainer)
    rows = batch(trainer)
    with forwards(trainer) as scoring:
        score(trainer, rows)
    for shapes in (learning, scoring):
        assert all(count == 1 or count * tokens <= BUDGET for count, tokens in shapes)
        assert sum(count for count, _ in shapes) == len(LENGTHS)
        assert max(tokens for _, tokens in shapes) == 36


def test_scores_come_in_the_order_of_the_rows(tmp_path):
    plain, packed = (make_trainer(tmp_path, budget) for budget in (WHOLE, BUDGET))
    expected = score(plain, batch(plain))
    torch.testing.assert_close(score(packed, batch(packed)), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("most", [7, 11], ids=["as many as rows or fewer", "more than rows"])
def test_all_processes_run_as_many_passes_as_the_one_with_most(tmp_path, most):
    asked = []

    def agree(passes):
        asked.append(passes)
        return most

    _, whole_gradients, whole_metrics, _ = learned(
        make_trainer(tmp_path, WHOLE), GRPOTrainer.compute_loss
    )
    trainer = make_trainer(tmp_path, BUDGET, agree=agree)
    _, gradients, metrics, shapes = learned(trainer)
    assert len(shapes) == most
    assert set(asked) == {4}
    for name, values in metrics.items():
        of_whole = pytest.approx(whole_metrics[name], rel=1e-4, abs=1e-6, nan_ok=True)
        assert values == of_whole, name
    for mine, theirs in zip(gradients, whole_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def test_rows_without_a_trained_token_may_be_alone_in_a_pass(tmp_path):
    trainer = make_trainer(tmp_path, BUDGET, agree=lambda _: len(LENGTHS))
    rows = batch(trainer)
    rows["tool_mask"][6] = 0
    trainer.compute_loss(trainer.model, rows).backward()
    assert all(p.grad.isfinite().all() for p in trainer.model.parameters())
    assert all(len(values) == 1 for values in trainer._metrics["train"].values())


def test_gradients_are_said_to_be_complete_in_the_last_pass_only(tmp_path):
    trainer = make_trainer(tmp_path, BUDGET)
    rows, said = batch(trainer), []
    backward = trainer.accelerator.backward

    def watched(loss, **kwargs):
        said.append(trainer.accelerator.sync_gradients)
        backward(loss, **kwargs)

    trainer.accelerator.backward = watched
    trainer.accelerator.backward(trainer.compute_loss(trainer.model, rows))
    assert said == [False, False, False, True]


def test_training_takes_one_optimizer_step_for_all_passes(tmp_path):
    steps = {}
    for budget in (WHOLE, BUDGET):
        trainer = make_trainer(tmp_path, budget)
        trainer.train()
        assert trainer.state.global_step == 2
        steps[budget] = [log for log in trainer.state.log_history if "grad_norm" in log]
    assert len(steps[BUDGET]) == 2
    for whole, packed in zip(steps[WHOLE], steps[BUDGET], strict=True):
        for name in ("loss", "grad_norm", "entropy"):
            assert packed[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name


def test_a_run_goes_on_with_another_budget_and_the_next_games(tmp_path):
    def played(budget, resume=None, **optimizer):
        trainer = make_trainer(tmp_path, budget, **optimizer)
        games = []

        def rollout_and_note(prompts, trainer):
            games.append("".join(prompts))
            return rollout(prompts, trainer)

        trainer.rollout_func = rollout_and_note
        trainer.args.save_steps = 2
        trainer.train(resume_from_checkpoint=resume)
        return games

    assert played(WHOLE) == ["aaaabbbb", "ccccdddd"]
    checkpoint = str(tmp_path / "checkpoints" / "checkpoint-2")
    assert played(BUDGET, checkpoint, max_steps=4) == ["eeeeffff", "gggghhhh"]
