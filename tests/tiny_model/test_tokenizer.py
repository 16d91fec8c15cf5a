"""The tokenizer: faithful to any text, whole numbers, and renderings that extend each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.environments.games.prompts import PromptFormat
from miner.tiny_model.build import base_recipe_for, recipe_tokenizer
from miner.tiny_model.sheets import NUMBERS

TOKENIZER = recipe_tokenizer(base_recipe_for((8, 10, 12, 14, 16)))


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@given(st.text())
def test_any_text_round_trips(text):
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["Crème brûlée — 3 €", "12345 -7 1", "\n\n 8 \n8\t8", "🂡 -> 4"])
def test_unusual_text_round_trips(text):
    assert TOKENIZER.decode(encode(text)) == text


@pytest.mark.parametrize("action", range(16))
def test_action_ids_are_single_tokens(action):
    assert TOKENIZER.convert_ids_to_tokens(encode(str(action))) == [str(action)]


def test_a_labelled_number_is_one_token():
    whole = [encode(f"Status:\n{label} 7") for label in NUMBERS]
    assert {len(ids) for ids in whole} == {2}
    assert len({ids[-1] for ids in whole}) == len(NUMBERS)


def test_a_number_of_a_list_is_the_same_token_in_every_list():
    assert encode("\nBasket: 3 7 ")[-2:] == encode("\nP0 hand: 3 7 ")[-2:]


@pytest.mark.parametrize("seat", [0, 1])
def test_option_lines_of_the_game_are_single_tokens(seat):
    lines = "".join(f"\n{card - 1} -> [P{seat}]Bid: {card}" for card in range(1, 17))
    assert len(encode(lines)) == 16


def test_known_prose_is_compact():
    told = PromptFormat.own("goofspiel").system_text
    assert len(encode(told)) < 20 < len(encode(told.upper()))


def test_a_longer_conversation_extends_the_shorter_one():
    messages = [
        {"role": "system", "content": "Pick."},
        {"role": "user", "content": "Current State:\nMarker: 3\n"},
    ]
    more = [{"role": "assistant", "content": "4"}, {"role": "user", "content": "Again: 5"}]

    def render(conversation):
        return TOKENIZER.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )

    shorter = render(messages) + "4" + TOKENIZER.eos_token
    longer = render(messages + more)
    assert longer.startswith(shorter)
    assert encode(longer) == encode(shorter) + encode(longer[len(shorter) :])


def test_it_is_a_pure_function_of_its_recipe(tmp_path):
    recipe_tokenizer(base_recipe_for((8, 10, 12, 14, 16))).save_pretrained(tmp_path / "again")
    TOKENIZER.save_pretrained(tmp_path / "first")
    files = [tmp_path / name / "tokenizer.json" for name in ("first", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_padding_and_eos_are_apart():
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    assert TOKENIZER.chat_template
