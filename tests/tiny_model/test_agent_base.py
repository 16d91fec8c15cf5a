"""The base for code agents: form only, and nothing of what is held out."""

import random
import re

from miner.environments.code_agent.arithmetic import pairs
from miner.rollout.renderer import ChatRenderer
from miner.tiny_model.code_agent.build import AgentRecipe, build_agent_base, dialogue
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer

DIALOGUES = [dialogue(random.Random(seed), AgentRecipe()) for seed in range(600)]
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def test_no_held_out_pair_is_in_what_it_reads() -> None:
    held_out = set(pairs(held_out=True))
    for pieces in DIALOGUES:
        left, right = map(int, re.findall(r"\d+", pieces[0][0]))
        assert tuple(sorted((left, right))) not in held_out


def test_the_operator_has_nothing_to_do_with_the_question() -> None:
    found = [
        (word, code[1])
        for pieces in DIALOGUES
        if (word := re.search(r"plus|minus|times", pieces[0][0]))
        and (code := re.search(r"print\(\d+ (.) \d+\)", pieces[1][0]))
    ]
    right = sum(SIGNS[word[0]] == sign for word, sign in found)
    assert 200 < len(found) < 400, "about half of the dialogues have code"
    assert 0.23 < right / len(found) < 0.43


def test_tokens_are_whole_numbers_and_every_text_survives() -> None:
    tokenizer = agent_tokenizer(-31, 961)
    for text in ("<code>print(31 * 2)</code>", "<output>-29</output>", "ä {x}\n 12345"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("<code>print(31 * 2)</code>")) == 7
    ChatRenderer(tokenizer)


def test_the_same_recipe_gives_the_same_weights(tmp_path: object) -> None:
    recipe = AgentRecipe(steps=2, batch=2)
    first, second = (
        build_agent_base(tmp_path / name, recipe=recipe) / "model.safetensors" for name in "ab"
    )
    assert first.read_bytes() == second.read_bytes()
