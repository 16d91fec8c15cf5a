"""Bases without a template get the validator's, or one of its layout."""

from pathlib import Path

import pytest

from miner.duel.calls import FORMS
from miner.rollout.base_templates import FILES, base_template
from miner.rollout.chat_template import CONVERSATION, fixed_template
from tests.builders import build_tokenizer

TOOLS = [{"type": "function", "function": {"name": "game_action", "parameters": {}}}]
KINDS = ["gemma4", "gemma4_text", "mistral3", "ministral3"]


def rendered(kind: str, *, prompt: bool = True) -> str:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    tokenizer.chat_template = fixed_template(tokenizer, kind).text
    shown = tokenizer.apply_chat_template(
        [{"role": m["role"], "content": m["content"]} for m in CONVERSATION],
        tools=TOOLS,
        add_generation_prompt=prompt,
        tokenize=False,
    )
    assert isinstance(shown, str)
    return shown


@pytest.mark.parametrize("kind", KINDS)
def test_tools_and_every_message_are_shown_in_order(kind: str) -> None:
    shown = rendered(kind)
    places = [shown.index(str(message["content"])) for message in CONVERSATION]
    assert places == sorted(places)
    assert shown.index('"game_action"') < places[0]
    assert FORMS["hermes"].shown in shown  # the form that the validator's parser reads


def test_gemmas_tools_have_a_turn_and_the_model_is_asked() -> None:
    shown = rendered("gemma4")
    assert shown.count("<start_of_turn>user\n") == 4  # tools, system, two of the user
    assert shown.endswith("<start_of_turn>model\n")


def test_ministrals_tools_open_the_first_instruction_and_nothing_asks() -> None:
    shown = rendered("mistral3")
    assert shown.count("[INST] ") == shown.count(" [/INST]") == 3
    assert rendered("mistral3", prompt=False) == shown


def test_the_validators_own_comes_first(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text(f"theirs {name}")
    for kind in KINDS:
        found = base_template(kind, tmp_path)
        assert found is not None
        assert found[0].startswith("theirs ")
        assert str(tmp_path) in found[1]
    assert base_template("llama", tmp_path) is None


def test_other_bases_keep_the_plain_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a submission's checkout holds the validator's
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    assert "plain one" in fixed_template(tokenizer, "llama").changes[0]
    assert "own words" in fixed_template(tokenizer, "gemma4").changes[0]
