"""A function of the user's makes the credit: from a group's episodes to each token."""

from pathlib import Path
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.config.settings import RewardSettings, Settings
from miner.rewards.own_credit import load_credit
from tests.builders import build_trajectory
from tests.learning.test_trainer import fixed_rollout, make_trainer
from tests.training.test_rollout_function import Player, lost, roll

ENTRY = str(Path(__file__).parents[2] / "examples" / "own_credit.py")


def test_the_example_credits_turns_alone_at_which_the_group_differed() -> None:
    won = build_trajectory(1.0, replies=["1", "2"])
    other = build_trajectory(0.0, replies=["1", "3"])
    group = [won, other, None]
    assert list(load_credit(f"{ENTRY}:credit")(group)) == [[0.0, 1.0], [0.0, -1.0], None]
    assert load_credit(f"{ENTRY}:credit")([None, None]) == [None, None]


def test_its_advantages_reach_the_tokens_of_their_turns(tmp_path: Path) -> None:
    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        mine = [[0.5, -2.0], None, [0.0, 0.25], [1.0, 1.0]]
        return fixed_rollout([1.0, 0.0, 0.5, 0.5])(prompts, trainer) | {"turn_advantages": mine}

    trainer = make_trainer(tmp_path, rollout, credit="own")
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    assert output["advantages"].tolist() == [[0.5, -2.0], [0.0, 0.0], [0.0, 0.25], [1.0, 1.0]]


def test_the_rollout_asks_it_group_by_group() -> None:
    first = [build_trajectory(1.0, replies=["1"]), build_trajectory(0.0, replies=["2"])]
    second = [build_trajectory(1.0, replies=["3"]), lost()]
    reward = RewardSettings(credit="own", entry=ENTRY)
    columns = roll(Player(*first, *second), reward)
    assert columns["turn_advantages"] == [[1.0], [-1.0], [0.0], None]


@pytest.mark.parametrize("made", ["numpy.full(2, 0.5)", "torch.full((2,), 0.5)"])
def test_arrays_are_numbers_too(tmp_path: Path, made: str) -> None:
    file = tmp_path / "idea.py"
    library = made.partition(".")[0]
    file.write_text(f"import {library}\ndef credit(group):\n    return [{made}] * len(group)\n")
    found = load_credit(f"{file}:credit")([build_trajectory(1.0, replies=["1", "2"])])
    assert found == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return [[1.0]]", "1 lists for a group of 2"),
        ("return [[1.0], [1.0]]", "an episode of 2 turns"),
        ("return [[1.0, float('nan')]] * 2", "expected a finite number for each"),
        ("return [[1.0, None]] * 2", "expected a finite number for each"),
        ("return [[1.0, None, 2.0]] * 2", "expected a finite number for each"),
        ("return [1.0, 1.0]", "expected a finite number for each"),
        ("return [{0: 0.5, 1: 0.5}] * 2", "expected a finite number for each"),
        ("return [{0.5, 0.25}] * 2", "expected a finite number for each"),
        ("return [[1.0, 10**400]] * 2", "expected a finite number for each"),
        ("return [[[1.0, 2.0], [1.0, 2.0]]] * 2", "expected a finite number for each"),
        ("group.sort(key=lambda each: each.score)", "AttributeError: .*line 2"),
        ("return group[0].points", r"AttributeError: .*line 2"),
        ("return None", "TypeError: .*not iterable"),
        ("yield group[0].points", r"AttributeError: .*line 2"),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    file = tmp_path / "idea.py"
    file.write_text(f"def credit(group):\n    {body}\n")
    group = [build_trajectory(1.0, replies=["1", "2"])] * 2
    with pytest.raises(ConfigurationError, match=sentence):
        load_credit(str(file))(group)


def test_it_is_set_together_with_its_entry() -> None:
    for missing in ("reward.credit=own", "reward.entry=mine.py:credit"):
        with pytest.raises(ConfigurationError, match="together with a function"):
            Settings.load(None, [missing], environ={})
    with pytest.raises(ConfigurationError, match="no function 'other'"):
        load_credit(f"{ENTRY}:other")
