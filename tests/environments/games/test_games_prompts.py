"""Prompt formats: our own words, learned words, stored words."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.config.contract import GAMES
from miner.environments.base import Message
from miner.environments.games import (
    GameSession,
    GradedDialogue,
    PromptFormat,
    PromptFormatError,
)
from miner.games import Turn, game_named


def transcript(
    prompt_format: PromptFormat, task_id: int, seed: int, failures: int = 0
) -> list[Message]:
    """The messages of an episode played at random, with some failures in each turn."""
    session = GameSession(task_id, seed)
    dialogue = GradedDialogue(prompt_format)
    rng = random.Random(seed)
    while not session.done:
        dialogue.ask(session.turn())
        for _ in range(failures):
            dialogue.reply("?")
        action = dialogue.reply(str(rng.choice(session.legal_actions()))).action
        assert action is not None
        session.play(action)
    return dialogue.conversation


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_our_own_format_is_learned_back(name: str, failures: int) -> None:
    own = PromptFormat.own(name)
    task_id = game_named(name).task_ids[0] + 3
    messages = transcript(own, task_id, 6, failures)
    learned = PromptFormat.learn(messages, task_id=task_id, seed=6)
    assert learned == own


words = st.text(alphabet="abc:\n> .", max_size=12)


@given(
    system=st.text(max_size=30),
    turn=st.tuples(words, words, words, words),
    action=st.tuples(st.sampled_from(["", "  ", "- ", "#"]), st.sampled_from([" -> ", ": ", ") "])),
    retry=st.tuples(words, words),
    task_id=st.integers(0, 4),
    seed=st.integers(0, 50),
)
@settings(max_examples=60)
def test_any_wording_is_reproduced_from_one_episode(
    system: str,
    turn: tuple[str, str, str, str],
    action: tuple[str, str],
    retry: tuple[str, str],
    task_id: int,
    seed: int,
) -> None:
    before, to_seat, to_actions, after = turn
    real = PromptFormat(
        "goofspiel",
        system,
        (f"{before}State:\n", f"{to_seat}Player ", f"{to_actions}\n", f"\n{after}Choose"),
        action,
        (f"Again{retry[0]} ", f" of 3{retry[1]}"),
    )
    learned = PromptFormat.learn(
        transcript(real, task_id, seed, failures=1), task_id=task_id, seed=seed
    )
    other_task, other_seed = task_id + 3, seed + 1
    assert transcript(learned, other_task, other_seed, 2) == transcript(
        real, other_task, other_seed, 2
    )


def test_the_attempt_number_is_found_beside_other_numbers() -> None:
    own = PromptFormat.own("goofspiel")
    real = replace(own, retry_parts=("Send a number such as 1. Attempt ", " of 3."))
    learned = PromptFormat.learn(transcript(real, 0, 0, failures=1), task_id=0, seed=0)
    assert learned.retry_parts == real.retry_parts


def test_a_retry_without_a_number_is_kept_as_it_is() -> None:
    real = replace(PromptFormat.own("goofspiel"), retry_parts=("Try again.",))
    learned = PromptFormat.learn(transcript(real, 0, 0, failures=2), task_id=0, seed=0)
    assert learned.retry_message(3) == {"role": "user", "content": "Try again."}


def test_our_own_words_for_an_opening_and_for_a_turn() -> None:
    dialogue = GradedDialogue(PromptFormat.own("goofspiel"))
    system, user = dialogue.ask(Turn("state one\n", 1, {0: "[P1]Bid: 1", 4: "[P1]Bid: 5"}))
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == (
        "Current State:\nstate one\n\n\nYou are Player 1.\nLegal Actions:\n"
        "0 -> [P1]Bid: 1\n4 -> [P1]Bid: 5\n\nYour choice (ID only):"
    )
    assert dialogue.reply("4").action == 4
    (only,) = dialogue.ask(Turn("state two\n", 1, {4: "[P1]Bid: 5"}))
    assert only["role"] == "user"
    assert "state two" in only["content"]


def _changed(messages: list[Message], index: int, old: str, new: str) -> list[Message]:
    message = messages[index]
    assert old in message["content"]
    edited: Message = {"role": message["role"], "content": message["content"].replace(old, new)}
    return [*messages[:index], edited, *messages[index + 1 :]]


def test_messages_that_fit_no_fixed_format_are_refused() -> None:
    messages = transcript(PromptFormat.own("goofspiel"), 0, 0)

    def learn(changed: list[Message]) -> PromptFormat:
        return PromptFormat.learn(changed, task_id=0, seed=0)

    with pytest.raises(PromptFormatError, match="system and a user message first"):
        learn(messages[1:])
    with pytest.raises(PromptFormatError, match="does not show the state"):
        learn(_changed(messages, 1, "P0 hand", "First hand"))
    with pytest.raises(PromptFormatError, match="no line names action 0"):
        learn(_changed(messages, 1, "[P0]Bid: 1\n", "one\n"))
    with pytest.raises(PromptFormatError, match="expected the seat 0"):
        learn(_changed(messages, 1, "Player 0.", "Player A."))
    with pytest.raises(PromptFormatError, match="turns differ in wording"):
        learn(_changed(messages, 3, "You are Player", "You sit at"))
    with pytest.raises(PromptFormatError, match="malformed turn"):
        learn(_changed(messages, 1, "P0 hand: 1 ", "P0 hand: "))


def test_retries_that_differ_otherwise_are_refused() -> None:
    messages = transcript(PromptFormat.own("goofspiel"), 0, 0, failures=2)
    with pytest.raises(PromptFormatError, match="attempt's number only"):
        PromptFormat.learn(_changed(messages[:6], 5, "reply", "answer"), task_id=0, seed=0)
    with pytest.raises(PromptFormatError, match="retry 1 reads"):
        PromptFormat.learn(_changed(messages, 9, "reply", "answer"), task_id=0, seed=0)
