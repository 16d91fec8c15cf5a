"""InterCode's requests and rewards equal the tournament's, over a shell that knows them by rote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miner.duel.intercode.conversation import Words, read, tools
from miner.duel.intercode.environment import OpenShell
from miner.duel.intercode.reward import Outcome, Parts, graded, similarity
from miner.duel.intercode.session import Session, Shell, gold_outcome
from miner.duel.tools import ToolCall
from tests.duel.golden import golden
from tests.duel.intercode_shells import task_folder
from tests.duel.make_extract import without_descriptions

TASKS = golden("intercode")
WORDS = Words("<SYSTEM>", "<NOTHING YET>", "<ASK>", "<NO CALL>", "<NO COMMAND>")


def recorded_calls(reply: dict[str, Any]) -> list[ToolCall]:
    return [
        ToolCall(name, given if isinstance(given, str) else json.dumps(given))
        for name, given in reply.get("calls") or ()
    ]


async def play(task: dict[str, Any], shell: Shell, gold_shell: Shell) -> Parts:
    """Play the recorded replies; each request is compared as it is asked."""
    session = Session(task["query"], shell, WORDS, max_turns=task["max_turns"])
    last = task["turns"][-1]
    for turn in task["turns"]:
        assert list(session.conversation.messages()) == turn["request"]["messages"]
        reply = turn["reply"]
        over = await session.answer(read(recorded_calls(reply)), reply["content"] or "")
        assert over is (turn is last)
    return graded(await session.outcome(), await gold_outcome(task["gold"], gold_shell))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["scenario"])
async def test_a_recorded_task_is_asked_and_graded_the_same(
    task: dict[str, Any], open_shell: OpenShell, tmp_path: Path
) -> None:
    files = task_folder(tmp_path) / "fs1" if task["fs"] == 1 else None
    shells = [await open_shell(files), await open_shell(files)]
    try:
        parts = await play(task, *shells)
    finally:
        for shell in shells:
            await shell.close()
    recorded = task["parts"]
    assert parts.reward == task["reward"]
    assert parts.file_diff == recorded["file_diff"]
    assert parts.file_changes == recorded["file_changes"]
    assert parts.answer_similarity == recorded["answer_similarity"]


def test_the_tools_are_the_recorded_ones_in_their_order() -> None:
    recorded = [line["tool"] for line in golden("tools") if line["set"] == "intercode"]
    ours = without_descriptions(tools(Words()))
    assert json.dumps(ours) == json.dumps(recorded)


def test_similar_texts_are_worth_what_scikit_learn_gives_them() -> None:
    """TfidfVectorizer's value for these two, computed by hand: one common word of two each."""
    rare = 1.4054651081081644
    assert similarity("Alpha beta", "beta gamma") == pytest.approx(1 / (1 + rare**2))
    assert similarity("", "alpha") == 0.0
    assert similarity("a", "b") == 0.0
    assert similarity("a\n", "a\n") == 1.0


def test_of_common_changes_the_equal_share_counts() -> None:
    gold = Outcome({"/x": "1", "/y": "2", "/gone": None}, "")
    parts = graded(Outcome({"/x": "1", "/y": "other", "/gone": None}, ""), gold)
    assert parts.file_changes == round(0.33 * 2 / 3, 2)
    assert parts.file_diff == 0.33
