"""Loading a model folder with all that playing it needs, or saying what it lacks."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

from miner.config.errors import ConfigurationError
from miner.duel.tools import shaped, turn_tools
from miner.duel.wording import own_wording
from miner.inference.transformers.sampler import eos_token_ids
from miner.publishing import load_check
from miner.rollout.chat_template import CONVERSATION, PLAIN
from miner.rollout.model_folder import check_model_folder, load_chat, load_model_folder
from tests.builders import (
    CHATML,
    build_metaspace_tokenizer,
    build_qwen3,
    build_tokenizer,
    save_base,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole model folder. Not to be changed."""
    return save_base(tmp_path_factory.mktemp("base"))


def folder_of(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    build_qwen3().config.save_pretrained(folder)
    return folder


def test_a_whole_folder_is_loaded_as_it_is_in_the_dtype_asked_for(whole):
    loaded = load_model_folder(whole, torch.float16)
    expected = build_qwen3().half().state_dict()
    found = loaded.model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (loaded.chat.changes, loaded.chat.fixed_template) == ((), None)
    assert loaded.chat.tokenizer.chat_template == CHATML
    assert loaded.chat.tokenizer.pad_token == "<|pad|>"


def test_a_template_that_is_fixed_is_played_with_and_handed_on(tmp_path):
    chat = load_chat(folder_of(build_tokenizer(None), tmp_path))
    assert chat.fixed_template == chat.tokenizer.chat_template == PLAIN
    assert "no chat template" in chat.changes[0]
    assert chat.renderer.render(CONVERSATION[:1]).startswith("### system\nYou play a game.")


@pytest.mark.parametrize(
    ("special", "padding"),
    [
        ([], "</s>"),
        (["<|reserved_0|>"], "<|reserved_0|>"),
        (["<|reserved_0|>", "<|right_Pad|>", "<|pad_2|>"], "<|right_Pad|>"),
    ],
)
def test_padding_is_a_token_that_no_text_holds_or_else_the_end(tmp_path, special, padding):
    tokenizer = build_metaspace_tokenizer()
    tokenizer.pad_token = None
    tokenizer.add_tokens([AddedToken("paddle", special=False)])
    tokenizer.add_tokens(special, special_tokens=True)
    assert load_chat(folder_of(tokenizer, tmp_path)).tokenizer.pad_token == padding


def test_what_cannot_be_loaded_is_named(whole, tmp_path):
    folder_of(build_tokenizer(), tmp_path)
    with pytest.raises(
        ConfigurationError, match=f"the model in {tmp_path} cannot be used: .*safet"
    ):
        load_model_folder(tmp_path, torch.float32)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ConfigurationError, match=f"the model in {tmp_path} cannot be used: "):
        load_chat(tmp_path)


@pytest.mark.parametrize("left", [130, 1000], ids=["a pointer", "cut off"])
def test_weights_that_are_not_whole_are_named(whole, tmp_path, left):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    os.truncate(tmp_path / "model.safetensors", left)
    with pytest.raises(ConfigurationError, match=f"in {tmp_path} cannot be used: .*download"):
        load_model_folder(tmp_path, torch.float32)
    (tmp_path / "generation_config.json").write_text("null")
    with pytest.raises(ConfigurationError, match=r"generation_config\.json holds no object"):
        load_chat(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigurationError, match=f"in {tmp_path} cannot be used"):
        load_model_folder(tmp_path, torch.float32)


def test_a_folder_without_a_model_is_distinguished_from_an_adapter(whole, tmp_path):
    check_model_folder(whole)
    with pytest.raises(ConfigurationError, match=f"^model.path {tmp_path} holds no model"):
        check_model_folder(tmp_path, named="model.path ")
    with pytest.raises(ConfigurationError, match=f"^{tmp_path} holds no model"):
        load_chat(tmp_path)
    with pytest.raises(ConfigurationError, match=r"hf download Org/Model-0\.5B --local-dir Model"):
        check_model_folder(Path("Org/Model-0.5B"))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=f"^{tmp_path} holds a LoRA adapter without"):
        load_chat(tmp_path)
    shutil.copy(whole / "config.json", tmp_path)
    with pytest.raises(ConfigurationError, match=f"^{tmp_path} holds adapter_config.json beside"):
        load_chat(tmp_path)


def test_a_tokenizer_of_mistrals_own_format_is_not_asked_for(whole, monkeypatch):
    """With its package installed, as vLLM has it, transformers would take it where it is there."""
    monkeypatch.setattr(
        "transformers.integrations.mistral.tokenizer.resolve_mistral_format",
        lambda *_, **__: pytest.fail("looked for"),
    )
    load_chat(whole)
    load_check._load_tokenizer(whole, strict=True)


@pytest.mark.parametrize(("kind", "fixed"), [("mistral3", True), ("qwen3", None)])
def test_words_are_cut_as_mistrals_servers_cut_them(kind, fixed, whole, tmp_path, monkeypatch):
    """transformers changes the pattern of large vocabularies alone, which none made here has."""
    base, load, asked = shutil.copytree(whole, tmp_path / "base"), AutoTokenizer.from_pretrained, []

    def from_pretrained(folder, **options):
        asked.append(options.get("fix_mistral_regex"))
        return load(folder, **options)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    config = json.loads((base / "config.json").read_text()) | {"model_type": kind}
    (base / "config.json").write_text(json.dumps(config))
    load_chat(base)
    assert asked == [fixed]


def test_what_a_base_says_on_sampling_does_not_keep_its_weights_from_being_saved(whole, tmp_path):
    base = shutil.copytree(whole, tmp_path / "base")
    said = {"temperature": 0.6, "top_p": 0.95, "eos_token_id": [5, 7]}
    (base / "generation_config.json").write_text(json.dumps(said))
    model = load_model_folder(base, torch.float32).model
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/model.safetensors").is_file()
    assert model.generation_config.eos_token_id == [5, 7]


@pytest.mark.parametrize(("kind", "sglang"), [("qwen3", True), ("olmo_hybrid", False)])
def test_a_base_is_played_as_its_server_plays_it(whole, tmp_path, kind, sglang):
    """The token that ends a reply, and the tools of a request as the template gets them."""
    base = shutil.copytree(whole, tmp_path / "base")
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
    tokenizer = build_tokenizer(template)
    turn_end, tokenizer.eos_token = tokenizer.eos_token_id, "<|endoftext|>"
    tokenizer.save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    if not sglang:
        layers = ["linear_attention"] * (config["num_hidden_layers"] - 1) + ["full_attention"]
        config |= {"layer_types": layers}
    (base / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    ends = {"eos_token_id": [turn_end, tokenizer.eos_token_id]}
    (base / "generation_config.json").write_text(json.dumps(ends))
    renderer = load_chat(base).renderer
    *_, last = renderer.encode_reply("5")
    assert last == (turn_end if sglang else tokenizer.eos_token_id)
    sent = turn_tools(own_wording(), [1, 2])
    shown, _ = json.JSONDecoder().raw_decode(renderer.render(CONVERSATION[:2], shaped(sent)))
    order = ["description", "name", "parameters", "strict"]
    assert [list(tool["function"]) for tool in shown] == [
        order if sglang else ["name", "description", "parameters"] for _ in sent
    ]
    assert [tool["function"]["parameters"] for tool in shown] == [
        tool["function"]["parameters"] for tool in sent
    ]
    model = build_qwen3()
    model.config.model_type = kind
    model.generation_config.eos_token_id = ends["eos_token_id"]
    assert eos_token_ids(model, tokenizer) == (
        set(ends["eos_token_id"]) if sglang else {tokenizer.eos_token_id}
    )
