"""The trainer's overrides against the behaviour of TRL's own."""

import functools
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    OPTConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from miner.config.settings import Settings
from miner.inference.merged_weights import weights_on_cpu
from miner.learning.learner import Learner, remove_dropout
from miner.learning.trainer import EpisodeTrainer, grpo_config
from miner.learning.tree_trainer import TreeTrainer
from miner.learning.update_guard import TrainingDivergedError, UpdateGuard
from tests.builders import build_qwen3, build_tokenizer, save_base


def make_trainer(tmp_path, rollout_func=None, model=None, corrected=False, **kwargs):
    settings = Settings.load(
        None,
        [
            f"run_dir={tmp_path}",
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "rollout.temperature=0.7",
            "optimizer.max_steps=2",
        ],
        environ={},
    )
    trainer = EpisodeTrainer(
        model=model or build_qwen3(),
        args=grpo_config(settings),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"] * 4}),
        reward_funcs=[lambda episode_reward, **_: episode_reward],
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
        **kwargs,
    )
    rollout = rollout_func or (lambda prompts, trainer: None)
    trainer.learn_from(rollout, corrected=corrected)
    return trainer


@pytest.mark.parametrize(("autocast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_what_is_learned_is_computed_in_the_dtype_that_sampled(
    tmp_path, monkeypatch, autocast, dtype
):
    """The sampler's forward runs in accelerate's; the trial of trees, with the first loss."""
    trainer = make_trainer(tmp_path, fixed_rollout([1.0, 0.0, 0.5, 0.25]))
    trainer.current_gradient_accumulation_steps = 1
    rows = scored(trainer)
    context = functools.partial(torch.autocast, "cpu", torch.bfloat16, enabled=autocast)
    monkeypatch.setattr(trainer.accelerator, "autocast", context)
    seen = set()
    layer = trainer.model.model.layers[0].mlp.down_proj
    layer.register_forward_hook(lambda module, given, output: seen.add(output.dtype))
    trainer.compute_loss(trainer.model, rows).backward()
    assert seen == {dtype}


def test_a_head_that_was_loaded_apart_stays_so_on_a_resume(tmp_path):
    """Of a base whose config ties it, and whose file has another one."""
    model = build_qwen3()
    model.config.tie_word_embeddings = True
    trainer = make_trainer(tmp_path, fixed_rollout([1.0] * 4), model)
    model.lm_head.weight = torch.nn.Parameter(torch.ones_like(model.lm_head.weight))
    trainer._issue_warnings_after_load(SimpleNamespace(missing_keys=[], unexpected_keys=[]))
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    with pytest.raises(RuntimeError, match=r"1 weights are missing .* such as model\.norm"):
        trainer._issue_warnings_after_load(
            SimpleNamespace(missing_keys=["model.norm.weight"], unexpected_keys=[])
        )


def fixed_rollout(rewards):
    """Four one-turn episodes of two groups, with these rewards."""

    def rollout(prompts, trainer):
        count = len(prompts)
        return {
            "prompt_ids": [[5, 6]] * count,
            "completion_ids": [[7 + number, 8, 9, 1] for number in range(count)],
            "logprobs": [[0.0] * 4] * count,
            "env_mask": [[1, 0, 1, 0]] * count,
            "turn_ids": [[[0, -1, 1, -1]]] * count,
            "turn_rewards": [[(0, 0.0), (1, r)] if r is not None else None for r in rewards],
            "episode_reward": list(rewards),
        }

    return rollout


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.5, 0.5], [1.0, None, 0.0, 0.75]])
def test_with_terminal_rewards_turn_credit_equals_trls_episode_credit(tmp_path, rewards):
    inputs = [{"prompt": p} for p in "aabb"]
    advantages = {}
    for credit in ("episode", "turn"):
        trainer = make_trainer(tmp_path, fixed_rollout(rewards), credit=credit)
        trainer.model.train()
        output = trainer._generate_and_score_completions([dict(row) for row in inputs])
        advantages[credit] = output["advantages"]
    expected = advantages["episode"].unsqueeze(1).expand(4, 2)  # of the tokens with loss
    torch.testing.assert_close(advantages["turn"], expected, atol=1e-5, rtol=1e-4)


def sampled_rollout(logprobs):
    """Four episodes whose sampler said these logprobs of the trained tokens."""

    def rollout(prompts, trainer):
        return fixed_rollout([1.0, 0.0, 0.5, 0.25])(prompts, trainer) | {
            "logprobs": [list(logprobs)] * len(prompts)
        }

    return rollout


def scored(trainer):
    """TRL's batch of one rollout."""
    trainer.model.train()
    return trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])


def poisoned(trainer, steps):
    """Make the gradients of these optimizer steps not finite."""
    compute = trainer._compute_loss

    def broken(model, inputs):
        loss = compute(model, inputs)
        return loss * float("nan") if trainer.state.global_step in steps else loss

    trainer._compute_loss = broken
    return trainer


def parameters_of(trainer):
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])


def test_an_update_that_is_not_finite_is_skipped_and_training_continues(tmp_path):
    guard, seen = UpdateGuard(), []

    def rollout(prompts, trainer):
        seen.append(parameters_of(trainer))
        return fixed_rollout([1.0, 0.0, 0.5, 0.25])(prompts, trainer)

    trainer = poisoned(make_trainer(tmp_path, rollout, guard=guard), {1})
    trainer.args.max_steps = 4
    trainer.train()
    seen.append(parameters_of(trainer))
    changed = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changed == [True, False, True, True]
    assert seen[-1].isfinite().all()
    assert guard.streak == 0


def infinite_loss(compute):
    """An infinite constant on the loss, in the second step: the gradient is as it was."""

    def broken(trainer, model, inputs):
        loss = compute(trainer, model, inputs)
        return loss + float("inf") if trainer.state.global_step == 1 else loss

    return broken


def impossible_token(score):
    """A trained token of probability 0, in the second step: loss and gradient stay finite."""

    def broken(trainer, *args, **kwargs):
        logprobs, *others = score(trainer, *args, **kwargs)
        if trainer.state.global_step == 1 and torch.is_grad_enabled():
            first = torch.arange(logprobs.shape[1]) == 0
            logprobs = logprobs.masked_fill(first, -float("inf"))
        return logprobs, *others

    return broken


@pytest.mark.parametrize(
    ("what", "method", "broken"),
    [
        ("loss", "_compute_loss", infinite_loss),
        ("log-probabilities", "_get_per_token_logps_and_entropies", impossible_token),
    ],
)
def test_an_update_is_skipped_where_the_gradient_alone_is_finite(
    tmp_path, monkeypatch, caplog, what, method, broken
):
    monkeypatch.setattr(TreeTrainer, method, broken(getattr(TreeTrainer, method)))
    seen = []

    def rollout(prompts, trainer):
        seen.append(parameters_of(trainer))
        return sampled_rollout([-6.0] * 4)(prompts, trainer)

    trainer = make_trainer(tmp_path, rollout, corrected=True)
    trainer.beta = 0.0  # the distance to an impossible token is infinite
    trainer.args.max_steps = 3
    trainer.train()
    seen.append(parameters_of(trainer))
    assert [not torch.equal(a, b) for a, b in pairwise(seen)] == [True, False, True]
    assert f"step 2 skipped: not finite: {what}" in caplog.text.splitlines()[-1]
    assert caplog.text.count("skipped") == 1
    assert "gradient" not in caplog.text


def test_gradients_that_stay_not_finite_end_training(tmp_path):
    trainer = make_trainer(
        tmp_path, fixed_rollout([1.0, 0.0, 0.5, 0.25]), guard=UpdateGuard(most=1)
    )
    before = parameters_of(trainer)
    with pytest.raises(TrainingDivergedError, match="2 times in a row, at last at step 2"):
        poisoned(trainer, {0, 1}).train()
    assert torch.equal(parameters_of(trainer), before)


def learner_with_adapters(tmp_path, model, *overrides):
    """A learner of `model`, saved at `base`, whose adapters are no longer without effect."""
    base = save_base(tmp_path / "base", model)
    wanted = ["model.tuning=lora", f"run_dir={tmp_path / 'run'}", *overrides]
    learner = Learner(Settings.load(None, wanted, environ={}), base)
    for name, parameter in learner.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return learner


def test_trained_weights_are_saved_with_a_template_that_holds_a_game(tmp_path):
    base, out = save_base(tmp_path / "base"), tmp_path / "out"
    build_tokenizer(chat_template=None).save_pretrained(base)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    learner = Learner(Settings.load(None, [], environ={}), base)
    out.mkdir()
    learner.save(out, weights_on_cpu(learner.model))
    assert "### assistant" in (out / "chat_template.jinja").read_text()


def test_adapters_in_the_last_layers_leave_those_below_out_of_training(tmp_path):
    base, out = tmp_path / "base", tmp_path / "out"
    learner = learner_with_adapters(tmp_path, build_qwen3(), "model.last_layers=1")
    below, above = learner.model(torch.tensor([[5, 6, 7]]), output_hidden_states=True)[
        "hidden_states"
    ][1:]
    assert not below.requires_grad, "nothing is kept for a backward pass"
    assert above.requires_grad
    out.mkdir()
    learner.save(out, weights_on_cpu(learner.model))
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (base, out)
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "layers.1." in name and "proj" in name}


def test_full_fine_tuning_of_the_last_layers_leaves_all_else_as_it_is(tmp_path):
    base = save_base(tmp_path / "base", build_qwen3())
    wanted = ["model.last_layers=1", f"run_dir={tmp_path / 'run'}"]
    learner = Learner(Settings.load(None, wanted, environ={}), base)
    assert set(learner.trained) == {
        name for name in dict(learner.model.named_parameters()) if "layers.1." in name
    }
    below, _ = learner.model(torch.tensor([[5, 6, 7]]), output_hidden_states=True)["hidden_states"][
        1:
    ]
    assert not below.requires_grad, "nothing is kept for a backward pass"


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_trained_weights_are_held_in_float32_for_any_compute_dtype(tmp_path, tuning):
    save_base(tmp_path, build_qwen3().to(torch.bfloat16))
    wanted = ["model.dtype=bfloat16", f"model.tuning={tuning}"]
    model = Learner(Settings.load(None, wanted, environ={}), tmp_path).model
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert trained == {torch.float32}
    assert frozen == ({torch.bfloat16} if tuning == "lora" else set())


def test_adapters_are_evaluated_as_they_are_published(tmp_path):
    """Merged and rounded to the base's dtype, and afterwards exactly as they were."""
    out = tmp_path / "out"
    model = build_qwen3().to(torch.bfloat16)
    learner = learner_with_adapters(tmp_path, model, "model.dtype=bfloat16")
    ids, before = torch.tensor([[5, 6, 7, 8]]), learner.model.state_dict()
    before = {name: weight.clone() for name, weight in before.items()}
    out.mkdir()
    learner.save(out, weights_on_cpu(learner.model))
    published = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    base, now = build_qwen3().to(torch.bfloat16).state_dict(), published.state_dict()
    changed = {name for name in base if not torch.equal(now[name], base[name])}
    assert changed == {name for name in base if "proj" in name}
    with torch.no_grad():
        training = learner.model.eval()(ids).logits
        with learner.as_published():
            evaluated = learner.model(ids).logits
        again = learner.model(ids).logits
    assert torch.equal(evaluated, published(ids).logits)
    assert not torch.equal(evaluated, training)
    assert torch.equal(again, training)
    assert all(torch.equal(before[n], weight) for n, weight in learner.model.state_dict().items())


def test_the_second_moment_decays_as_set() -> None:
    settings = Settings.load(None, ["optimizer.adam_beta2=0.9", "optimizer.max_steps=3"])
    assert grpo_config(settings).adam_beta2 == 0.9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_and_clipping_reach_trl(monkeypatch, dtype):
    made = {}
    monkeypatch.setattr("miner.learning.trainer.GRPOConfig", lambda **given: made.update(given))
    wanted = [f"model.dtype={dtype}", "optimizer.max_grad_norm=0.5"]
    grpo_config(Settings.load(None, wanted, environ={}), cuda=True)
    assert (made["bf16"], made["max_grad_norm"]) == (dtype == "bfloat16", 0.5)


def test_an_update_is_skipped_where_another_process_found_it_unsound(tmp_path, monkeypatch):
    monkeypatch.setattr("miner.learning.trainer.gather_object", lambda here: [*here, "loss"])
    guard = UpdateGuard()
    make_trainer(tmp_path, fixed_rollout([1.0, 0.0, 0.5, 0.25]), guard=guard).train()
    assert guard.streak == 2


def test_the_divergence_is_a_mean_over_sampled_tokens_beside_taught_ones(tmp_path):
    """Rows that are taught weigh the same, however many tokens the mean is over."""
    trainer = make_trainer(tmp_path)
    taught, by_beta = torch.nan, {}
    for beta in (0.0, 0.1):
        trainer.beta = beta
        output = {
            "advantages": torch.zeros(2),
            "completion_ids": torch.ones(2, 3, dtype=torch.long),
            "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
            "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 0]]),
            "sampling_per_token_logps": torch.tensor([[-1.0, 0.0, -1.0], [taught, taught, 0.0]]),
            "num_items_in_batch": torch.tensor(4),
        }
        advantages = trainer._weighted(output, [None, 1.0], 1.0)
        by_beta[beta] = output["num_items_in_batch"], advantages / output["num_items_in_batch"]
    assert [int(count) for count, _ in by_beta.values()] == [4, 2]
    torch.testing.assert_close(by_beta[0.0][1], by_beta[0.1][1])


def test_the_loss_of_a_mixture_of_experts_depends_on_no_size_of_a_pass(tmp_path):
    config = build_qwen3().config.to_dict() | {"num_experts": 8, "moe_intermediate_size": 32}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**config))
    trainer = make_trainer(tmp_path, fixed_rollout([1.0, 0.0, 0.5, 0.25]), model)
    trainer.current_gradient_accumulation_steps = 1
    rows = scored(trainer)
    losses = []
    for trainer._tokens_per_pass in (1000, 1):
        losses.append(trainer.compute_loss(trainer.model, rows).detach())
    torch.testing.assert_close(*losses)


ENDS = {"bos_token_id": 0, "eos_token_id": 1}


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, **ENDS),
        OPTConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            ffn_dim=16,
            num_attention_heads=2,
            word_embed_proj_dim=16,
            attention_dropout=0.3,
            **ENDS,
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_nothing_is_dropped_while_training(config):
    model = AutoModelForCausalLM.from_config(config).train()
    ids = torch.arange(2, 20)[None]
    assert (model(ids).logits != model(ids).logits).any()
    remove_dropout(model)
    torch.testing.assert_close(model(ids).logits, model.eval()(ids).logits)
