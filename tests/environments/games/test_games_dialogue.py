"""The grader's dialogue: who is told what after each reply."""

from __future__ import annotations

import pytest

from miner.environments.games import GradedDialogue, PromptFormat
from miner.games import Turn

TURN = Turn("state one\n", 1, {0: "[P1]Bid: 1", 4: "[P1]Bid: 5"})
NEXT = Turn("state two\n", 1, {4: "[P1]Bid: 5"})


@pytest.fixture
def dialogue() -> GradedDialogue:
    return GradedDialogue(PromptFormat.own("goofspiel"))


def test_the_third_failure_of_a_turn_ends_the_episode(dialogue: GradedDialogue) -> None:
    dialogue.ask(TURN)
    assert [dialogue.reply("?").failed for _ in range(3)] == [False, False, True]
    assert "ttempt 3 of 3" in dialogue.conversation[-1]["content"]
    with pytest.raises(RuntimeError, match="ask"):
        dialogue.reply("0")


def test_failures_are_counted_per_turn(dialogue: GradedDialogue) -> None:
    for turn in (TURN, NEXT, TURN):
        dialogue.ask(turn)
        assert not dialogue.reply("?").failed
        assert not dialogue.reply("99").failed
        assert dialogue.reply("4").action == 4
