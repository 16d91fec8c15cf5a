"""Building the model: it learns, reproducibly, into a folder that is whole or not there."""

import random
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from miner.config.errors import ConfigurationError
from miner.tiny_model import build
from miner.tiny_model.__main__ import main
from miner.tiny_model.build import Recipe, build_tiny_model, cached_tiny_model, content_key, is_made
from miner.tiny_model.examples import Encoder
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.number_following import DataRecipe, draw_conversation
from miner.tiny_model.warm_start import WarmStartRecipe, lookup_accuracy

SMALL = Recipe(
    data=DataRecipe(sizes=(4,), max_turns=2, noise_tokens=4),
    network=NetworkRecipe(hidden_size=64, intermediate_size=64),
    warm_start=WarmStartRecipe(steps=3, batch=2, warmup_steps=1),
)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_the_folder_loads_as_any_pretrained_model_does(tmp_path):
    folder = build_tiny_model(tmp_path / "model", recipe=SMALL)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.vocab_size == len(tokenizer)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Marker: 3"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=False,
    )
    assert torch.isfinite(model(ids).logits).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_the_same_seed_builds_the_same_weights(tmp_path):
    first, again, other = (
        weights(build_tiny_model(tmp_path / name, recipe=SMALL, seed=seed))
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_loss_falls(tmp_path):
    losses = []
    recipe = replace(SMALL, warm_start=WarmStartRecipe(steps=60, batch=4, warmup_steps=5))
    build_tiny_model(
        tmp_path / "model", recipe=recipe, progress=lambda *report: losses.append(report)
    )
    assert [step for step, _, _ in losses] == list(range(1, 61))
    assert {total for _, total, _ in losses} == {60}
    assert losses[-1][2] < 0.7 * losses[0][2]


def test_a_cached_model_is_made_once(tmp_path):
    first = cached_tiny_model(tmp_path, recipe=SMALL)
    written = (first / "model.safetensors").stat().st_mtime_ns

    def must_not_run(step, total, loss):
        pytest.fail("a cached model was built again")

    assert cached_tiny_model(tmp_path, recipe=SMALL, progress=must_not_run) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert cached_tiny_model(tmp_path, recipe=SMALL, seed=1) != first


def test_a_model_is_known_by_its_recipe_and_seed(tmp_path):
    out = tmp_path / "model"
    assert not is_made(out, recipe=SMALL)
    build_tiny_model(out, recipe=SMALL)
    assert is_made(out, recipe=SMALL)
    assert not is_made(out, recipe=SMALL, seed=1)
    assert not is_made(out, recipe=replace(SMALL, warm_start=WarmStartRecipe(steps=4)))
    (out / build.RECIPE_FILE).write_text("{")
    assert not is_made(out, recipe=SMALL)


def test_a_failed_build_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(build.PreTrainedTokenizerFast, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        build_tiny_model(tmp_path / "model", recipe=SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_someone_else_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty"):
        build_tiny_model(tmp_path, recipe=SMALL)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_training_example_equals_the_rendering_of_its_chat():
    tokenizer = build.recipe_tokenizer(SMALL)
    rng = random.Random(3)
    conversation = draw_conversation(rng, replace(SMALL.data, noise=0.0))
    (example,) = Encoder(tokenizer).encode([conversation], rng)
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for turn in conversation.turns:
        messages += [
            {"role": "user", "content": turn.text},
            {"role": "assistant", "content": str(turn.answer)},
        ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert list(example.ids) == rendered
    answered = [tokenizer.decode([example.ids[place + 1]]) for place in example.positions]
    assert answered == [str(turn.answer) for turn in conversation.turns]


def test_a_model_that_learned_nothing_looks_nothing_up():
    tokenizer, rng = build.recipe_tokenizer(SMALL), random.Random(0)
    model = build_network(tokenizer, SMALL.network, seed=0)
    assert lookup_accuracy(model, Encoder(tokenizer), SMALL.data, rng, 50) < 0.1


def test_a_network_of_one_answer_is_right_where_that_is_the_nearest():
    tokenizer, rng = build.recipe_tokenizer(SMALL), random.Random(0)
    model = build_network(tokenizer, SMALL.network, seed=0)
    model.model.norm.weight.data.zero_()  # all logits are 0
    answer = torch.eye(len(tokenizer))[tokenizer.convert_tokens_to_ids("0")]
    model.lm_head.register_forward_hook(lambda head, states, logits: logits + answer)
    assert 0.1 < lookup_accuracy(model, Encoder(tokenizer), SMALL.data, rng, 100) < 0.6


def test_number_tokens_start_out_ordered_by_value():
    tokenizer = build.recipe_tokenizer(SMALL)
    model = build_network(tokenizer, replace(SMALL.network, number_features=1.0), seed=0)
    rows = model.get_input_embeddings().weight
    one, two, nine = (rows[tokenizer.convert_tokens_to_ids(n)] for n in ("1", "2", "9"))
    assert torch.dot(one, two) > torch.dot(one, nine)


def test_tokens_of_one_number_and_of_one_spelling_start_out_alike():
    tokenizer = build.recipe_tokenizer(SMALL)
    recipe = replace(SMALL.network, number_names=9.0, spelling_features=9.0)
    embeddings = build_network(tokenizer, recipe, seed=0).get_input_embeddings().weight

    def alike(first: str, second: str) -> float:
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
        assert [len(each) for each in ids] == [1, 1]
        return torch.cosine_similarity(*(embeddings[each[0]] for each in ids), dim=0).item()

    assert alike("7", " 7") > 0.9 > 0.5 > alike("7", " 6")
    assert alike("<|user|>", "<|system|>") > alike("<|pad|>", "\n") + 0.1


def test_the_command_reports_what_it_does_and_keeps_what_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiny_model", f"--out={tmp_path / 'model'}", "--steps=2"])
    main()
    first = capsys.readouterr().out.splitlines()
    assert first[0] == "making the tiny base model: 2 steps at most, kept for next time"
    assert first[-1] == str(tmp_path / "model")
    made = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    main()
    assert capsys.readouterr().out.startswith("the tiny base model is there already")
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == made


def test_the_key_distinguishes_recipes_and_seeds():
    longer = replace(SMALL, warm_start=WarmStartRecipe(steps=4))
    keys = {content_key(SMALL, 0), content_key(SMALL, 1), content_key(longer, 0)}
    assert len(keys) == 3
    assert content_key(SMALL, 0) == content_key(replace(SMALL), 0)
