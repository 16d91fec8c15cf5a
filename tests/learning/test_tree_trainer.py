"""Trees in passes by a budget of tokens teach what TRL's padded rows in one pass do."""

import logging
import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from miner.config.settings import Settings
from miner.learning.learner import with_adapters
from tests.builders import build_qwen3
from tests.learning.trees import BUDGET, LENGTHS, WHOLE, batch, learned, make_trainer, rollout

FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}


def build(family, **more):
    """A random model of two layers with spread-out logits."""
    torch.manual_seed(0)
    config = family(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        **more,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def path_tokens(length):
    """Of a row: from its first token to the one that the last with loss is predicted from."""
    prompt, completion = length
    return prompt + (completion - 1) // 3 * 3


def assert_same(ours, theirs):
    """Loss and gradients within 1e-5 of the largest, and the metrics that TRL has."""
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-6)
    assert ours[1].keys() == theirs[1].keys()
    assert max(g.abs().max() for g in theirs[1].values()) > 1e-4
    for name, expected in theirs[1].items():
        difference = (ours[1][name] - expected).abs().max()
        assert difference <= 1e-5 * expected.abs().max() + 1e-9, name
    for name, values in theirs[2].items():
        if name != "num_tokens":
            assert ours[2][name] == pytest.approx(values, rel=1e-4, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("corrected", [False, True], ids=["on-policy", "engine"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_loss_gradient_and_metrics_are_those_of_trls_rows_in_one_pass(tmp_path, beta, corrected):
    more = {"beta": beta, "corrected": corrected}
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, **more))
    ours = learned(make_trainer(tmp_path, BUDGET, **more))
    assert theirs[3] == [(8, 36)] * (1 + corrected)  # scored for the ratio, then learned
    assert len(ours[3]) > 2
    assert_same(ours, theirs)
    assert bool(beta) == (theirs[2].get("kl", [0.0])[0] > 0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_trees_of_each_family_teach_what_rows_do(tmp_path, family, attention):
    def model():
        return build(FAMILIES[family], attn_implementation=attention)

    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, model=model()))
    trainer = make_trainer(tmp_path, WHOLE, model=model())
    ours = learned(trainer)
    assert_same(ours, theirs)
    work = ours[2]["computed_tokens"][0]
    assert 0 < work < 0.8 * sum(map(sum, LENGTHS))
    assert ours[2]["row_tokens"] == [sum(map(path_tokens, LENGTHS))]


def test_adapters_and_gradient_checkpointing(tmp_path):
    settings = Settings.load(None, ["model.tuning=lora", "model.lora_rank=4"], environ={})

    def trainer(**more):
        torch.manual_seed(0)
        model = with_adapters(build_qwen3(), settings)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        return make_trainer(tmp_path, model=model, **more)

    theirs = learned(trainer(budget=WHOLE, trl=True))
    assert_same(learned(trainer(budget=BUDGET)), theirs)
    checkpointed = trainer(budget=BUDGET)
    checkpointed.model.gradient_checkpointing_enable({"use_reentrant": False})
    checkpointed.model.enable_input_require_grads()
    assert_same(learned(checkpointed), theirs)


def test_layers_with_windows_take_trees(tmp_path):
    def model():
        return build(MistralConfig, sliding_window=8)

    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, model=model()))
    trainer = make_trainer(tmp_path, WHOLE, model=model())
    assert_same(learned(trainer), theirs)
    assert trainer.takes_trees


def test_a_model_of_other_layers_gets_rows_and_the_log_names_the_reason_once(tmp_path, caplog):
    def model():
        return build(Lfm2Config, layer_types=["conv", "full_attention"])

    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, model=model()))
    trainer = make_trainer(tmp_path, WHOLE, model=model())
    with caplog.at_level(logging.WARNING):
        ours = learned(trainer)
        learned(trainer, batch(trainer))
    assert_same(ours, theirs)
    reasons = [line for line in caplog.messages if "takes no trees" in line]
    assert len(reasons) == 1
    assert "layers are of the kinds ['conv', 'full_attention']" in reasons[0]


def test_between_passes_the_run_gives_a_sign_of_life(tmp_path):
    signs = []
    trainer = make_trainer(
        tmp_path, BUDGET, after_pass=lambda: signs.append(trainer.model.training)
    )
    trainer.takes_trees  # noqa: B018  its trial runs forwards as well
    *_, shapes = learned(trainer)
    assert len(signs) == len(shapes) - 1 > 0


def test_passes_keep_to_the_budget_with_and_without_gradient(tmp_path):
    trainer = make_trainer(tmp_path, BUDGET, beta=0.5)
    *_, shapes = learned(trainer)
    assert all(lines == 1 or lines * tokens <= BUDGET for lines, tokens in shapes)
    ours = batch(trainer)["ref_per_token_logps"]
    theirs = batch(make_trainer(tmp_path, WHOLE, beta=0.5))["ref_per_token_logps"]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("processes", [2, 5], ids=["some trees each", "more than trees"])
def test_processes_share_the_trees_of_a_step_out(tmp_path, monkeypatch, processes):
    """Each gets the whole step here, as if the others had brought no rows."""
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True))
    rows = batch(trainer := make_trainer(tmp_path, BUDGET, gather=lambda value: [value]))
    trainer.takes_trees  # noqa: B018  its trial runs forwards as well
    found, computed = [], []
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", processes)
    for process in range(processes):
        monkeypatch.setattr(type(trainer.accelerator), "process_index", process)
        loss, gradients, metrics, shapes = learned(trainer, rows)
        found.append((loss, gradients))
        computed.append(sum(tokens for _, tokens in shapes if tokens > 2))
        assert len(shapes) == (1 if processes == 5 else 2)  # an idle one computes two tokens
    whole = sum(loss for loss, _ in found) / processes
    mean = {n: sum(g[n] for _, g in found) / processes for n in theirs[1]}
    assert sum(computed) == metrics["computed_tokens"][0]
    assert_same((whole, mean, theirs[2], None), theirs)


def test_without_gradient_processes_run_as_many_passes_as_the_one_with_most(tmp_path):
    def gather(value):
        return [value, 7 if isinstance(value, int) else value]

    trainer = make_trainer(tmp_path, BUDGET, beta=0.5, gather=gather)
    ours = batch(trainer)["ref_per_token_logps"]
    theirs = batch(make_trainer(tmp_path, WHOLE, beta=0.5))["ref_per_token_logps"]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_process_computes_rows_where_another_can_take_no_trees(tmp_path, caplog):
    """Passes differ in number otherwise, and each waits for all processes."""

    def gather(value):
        return [value, "kernel failed there" if value is None else value]

    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True))
    trainer = make_trainer(tmp_path, WHOLE, gather=gather)
    ours = learned(trainer)
    assert not trainer.takes_trees
    assert "takes no trees: kernel failed there" in caplog.text
    assert ours[2]["computed_tokens"] == ours[2]["row_tokens"]
    assert_same(ours, theirs)


def test_rows_are_computed_where_the_reference_model_takes_no_trees(tmp_path):
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, beta=0.5))
    trainer = make_trainer(tmp_path, WHOLE, beta=0.5)
    trainer.ref_model.config.index_topk = 2
    assert_same(learned(trainer), theirs)
    assert not trainer.takes_trees


def without(columns, rows):
    """The same rollout, these rows without a token to learn from."""
    masks = [
        [0] * len(mask) if row in rows else mask for row, mask in enumerate(columns["env_mask"])
    ]
    return columns | {"env_mask": masks}


def test_rows_without_a_token_to_learn_from_teach_nothing(tmp_path):
    columns = without(rollout(), {1, 6})
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, columns=columns))
    ours = learned(make_trainer(tmp_path, BUDGET, columns=columns))
    assert ours[2]["rows"] == [6]
    with_loss = [length for row, length in enumerate(LENGTHS) if row not in {1, 6}]
    assert ours[2]["row_tokens"] == [sum(map(path_tokens, with_loss))]
    for metrics in (ours[2], theirs[2]):  # TRL's smallest share of a row without tokens is not one
        metrics.pop("clip_ratio/low_min"), metrics.pop("clip_ratio/high_max")
    assert_same(ours, theirs)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_single_token_with_loss_in_each_row(tmp_path, beta):
    """TRL takes one column for a value of a whole row."""
    columns = rollout()
    columns["env_mask"] = [[int(i == 0) for i in range(c)] for _, c in LENGTHS]
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, columns=columns, beta=beta))
    ours = learned(make_trainer(tmp_path, BUDGET, columns=columns, beta=beta))
    assert_same(ours, theirs)


def test_rows_without_advantage_are_left_out_and_the_mean_stays_that_of_all(tmp_path):
    columns = rollout() | {"episode_reward": [1.0, 0.0, 0.5, 0.0, 0.3, 0.3, 0.3, 0.3]}
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, columns=columns))
    ours = learned(make_trainer(tmp_path, WHOLE, columns=columns))
    assert ours[2].pop("rows_left_out") == [3]  # the one of two tokens begins as another does
    assert ours[2].pop("rows") == [8]
    theirs[2].pop("entropy")  # over the rows that are learned from
    assert_same(ours, theirs)
    tokens = sum(sum(length) for length in LENGTHS[:4])
    assert ours[2]["computed_tokens"][0] < tokens


@pytest.mark.parametrize(("engine", "left_out"), [(True, 3), (False, 4)])
def test_without_trees_one_row_without_advantage_is_computed_for_an_engines_metrics(
    tmp_path, engine, left_out
):
    rewards = [1.0, 0.0, 0.5, 0.0, 0.3, 0.3, 0.3, 0.3]
    columns = rollout([(30, 4)] * 8, share=0.95) | {"episode_reward": rewards}
    more = {"columns": columns, "corrected": engine}
    trees = learned(make_trainer(tmp_path, WHOLE, **more))
    trainer = make_trainer(tmp_path, WHOLE, **more)
    trainer.model.config.index_topk = 2
    rows = learned(trainer)
    assert not trainer.takes_trees
    assert (trees[2]["rows_left_out"], rows[2]["rows_left_out"]) == ([0], [left_out])
    assert rows[0] == pytest.approx(trees[0], rel=1e-5)


def test_with_a_kl_term_every_row_counts(tmp_path):
    columns = rollout() | {"episode_reward": [0.5] * 8}
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, columns=columns, beta=0.5))
    ours = learned(make_trainer(tmp_path, WHOLE, columns=columns, beta=0.5))
    assert ours[2]["rows_left_out"] == [0]
    assert_same(ours, theirs)


def test_a_step_without_a_token_to_learn_from_teaches_nothing(tmp_path):
    trainer = make_trainer(tmp_path, WHOLE, columns=without(rollout(), set(range(8))))
    assert learned(trainer)[0] == 0.0


def test_a_step_that_teaches_nothing_computes_two_tokens(tmp_path):
    columns = rollout() | {"episode_reward": [0.5] * 8}
    trainer = make_trainer(tmp_path, WHOLE, columns=columns, corrected=True)
    loss, gradients, metrics, shapes = learned(trainer)
    assert (loss, shapes[-1:]) == (0.0, [(1, 2)])
    assert metrics["rows_left_out"] == metrics["rows"] == [8]
    assert metrics["computed_tokens"] == [0]
    assert all((g == 0).all() for g in gradients.values())
    assert "sampling/sampling_logp_difference/mean" not in metrics


def test_the_importance_ratio_is_trls_without_a_second_scoring(tmp_path):
    more = {"corrected": True, "model": None}
    theirs_trainer = make_trainer(tmp_path, WHOLE, trl=True, **more)
    theirs = learned(theirs_trainer)
    ratios = theirs_trainer._metrics["train"]
    trainer = make_trainer(tmp_path, WHOLE, **more)
    trainer.takes_trees  # noqa: B018
    ours = learned(trainer)
    assert_same(ours, theirs)
    assert (len(ours[3]), len(theirs[3])) == (1, 2)
    for name in (
        "sampling/sampling_logp_difference/mean",
        "sampling/sampling_logp_difference/max",
        "sampling/importance_sampling_ratio/mean",
    ):
        assert ours[2][name] == pytest.approx(ratios[name], rel=1e-5), name
    clip = trainer.vllm_importance_sampling_clip_max
    assert ratios["sampling/importance_sampling_ratio/max"] == [clip]


def test_tokens_that_were_not_sampled_have_a_ratio_of_one_and_no_metrics(tmp_path):
    """Row 7 is an alternative: TRL treats a logprob that is not there alike, but for metrics."""
    columns = rollout()
    columns["logprobs"][7] = [math.nan] * LENGTHS[7][1]
    more = {"corrected": True, "columns": columns}
    theirs = learned(make_trainer(tmp_path, WHOLE, trl=True, **more))
    ours = learned(make_trainer(tmp_path, BUDGET, **more))
    sampled = learned(make_trainer(tmp_path, BUDGET, corrected=True, columns=without(columns, {7})))
    for name in ("entropy", "sampling/sampling_logp_difference/mean"):
        assert ours[2][name] == pytest.approx(sampled[2][name], rel=1e-5), name
        theirs[2].pop(name, None)
    assert_same(ours, theirs)


def test_gradients_are_reported_complete_in_the_last_pass_only(tmp_path):
    trainer = make_trainer(tmp_path, BUDGET)
    rows, said = batch(trainer), []
    backward = trainer.accelerator.backward

    def watched(loss, **kwargs):
        said.append(trainer.accelerator.sync_gradients)
        backward(loss, **kwargs)

    trainer.accelerator.backward = watched
    trainer.accelerator.backward(trainer.compute_loss(trainer.model, rows))
    assert said == [False, False, True]


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


def test_a_run_continues_with_another_budget_and_the_next_games(tmp_path):
    def played(budget, resume=None, **optimizer):
        trainer = make_trainer(tmp_path, budget, **optimizer)
        games = []

        def rollout_and_note(prompts, trainer):
            games.append("".join(prompts))
            return rollout()

        trainer.rollout_func = rollout_and_note
        trainer.args.save_steps = 2
        trainer.train(resume_from_checkpoint=resume)
        return games

    assert played(WHOLE) == ["aaaabbbb", "ccccdddd"]
    checkpoint = str(tmp_path / "checkpoints" / "checkpoint-2")
    assert played(BUDGET, checkpoint, max_steps=4) == ["eeeeffff", "gggghhhh"]
