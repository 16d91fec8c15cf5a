"""The grader's dialogue: who is told what after each reply."""

import pytest

from miner.environments.games import GradedDialogue, PromptFormat
from miner.games import Turn

TURN = Turn("state one\n", 1, {0: "[P1]Bid: 1", 4: "[P1]Bid: 5"})
NEXT = Turn("state two\n", 1, {4: "[P1]Bid: 5"})


@pytest.fixture
def dialogue() -> GradedDialogue:
    return GradedDialogue(PromptFormat.own("goofspiel"))


def test_the_first_turn_opens_with_the_system_message(dialogue: GradedDialogue) -> None:
    system, user = dialogue.ask(TURN)
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == (
        "Current State:\nstate one\n\n\nYou are Player 1.\nLegal Actions:\n"
        "0 -> [P1]Bid: 1\n4 -> [P1]Bid: 5\n\nYour choice (ID only):"
    )
    assert dialogue.reply("4").action == 4
    (only,) = dialogue.ask(NEXT)
    assert only["role"] == "user"
    assert "state two" in only["content"]


def test_an_unparsable_reply_is_answered_in_the_same_turn(dialogue: GradedDialogue) -> None:
    dialogue.ask(TURN)
    verdict = dialogue.reply("no idea")
    assert verdict.action is None
    assert not verdict.failed
    (retry,) = verdict.messages
    assert retry["role"] == "user"
    assert "ttempt 1 of 3" in retry["content"]
    verdict = dialogue.reply("<think>0</think>4")
    assert verdict.action == 4
    assert verdict.messages == ()
    assert [m["role"] for m in dialogue.conversation] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert dialogue.conversation[-1]["content"] == "4"


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


def test_only_the_current_turn_is_legal(dialogue: GradedDialogue) -> None:
    dialogue.ask(TURN)
    dialogue.reply("0")
    dialogue.ask(NEXT)
    assert dialogue.reply("0").action is None
    assert dialogue.reply("4").action == 4
