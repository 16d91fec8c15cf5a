"""Rows of software tasks in the form that the final's agent reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miner.config.contract import SWE_SUBMISSION, SWE_TURNS
from miner.swe_form import BLOCK, observation, problem, rewritten


def block(command: str) -> str:
    return f"```bash\n{command}\n```"


def call(command: str, content: str = "") -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": content, "tool_calls": [{"function": function}]}


START = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "A bug."}]
SUBMIT = {"role": "assistant", "content": f"Done.\n\n{block(SWE_SUBMISSION)}"}


def turns(count: int) -> list[dict[str, str]]:
    """A row with `count` replies, the last of which submits."""
    looks = [
        {"role": "assistant", "content": f"I look.\n\n{block('ls')}"},
        {"role": "user", "content": observation("a.py\n")},
    ]
    return [*START, *looks * (count - 1), SUBMIT]


def test_calls_become_blocks_and_results_observations() -> None:
    row = [
        *START,
        call("ls", "<think>first\n```bash\nrm -r /\n```</think>I look."),
        {"role": "tool", "content": "a.py\n", "returncode": 1},
        call(SWE_SUBMISSION),
    ]
    found = rewritten(row)
    assert [message["role"] for message in found[2:]] == ["assistant", "user", "assistant"]
    assert found[2]["content"] == f"I look.\n\n{block('ls')}"
    assert found[3]["content"] == "<returncode>1</returncode>\n<output>\na.py\n</output>"
    assert BLOCK.findall(found[4]["content"]) == [SWE_SUBMISSION]
    assert problem(found) == ""
    assert rewritten(found) == found


def test_a_long_output_keeps_head_and_tail() -> None:
    shown = observation("a" * 6000 + "b" * 6000)
    assert shown.count("a") == 5000 + "[2000 characters left out]".count("a")
    assert shown.count("b") == 5000


@pytest.mark.parametrize("count", [1, 2, SWE_TURNS - 1])
def test_rows_of_the_form_have_no_problem(count: int) -> None:
    assert problem(turns(count)) == ""


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (START[1:], "does not begin with"),
        ([*turns(1), START[1], START[1]], "take turns"),
        ([*START, {"role": "assistant", "content": "Done."}], "reply 1 has 0 blocks"),
        ([*START, {"role": "assistant", "content": block("ls") * 2}], "reply 1 has 2 blocks"),
        ([*START, {"role": "assistant", "content": f"</think>{block('ls')}"}], "holds a thought"),
        (turns(2)[:3], "must submit"),
        (
            [*START, {"role": "assistant", "content": block(f"ls && {SWE_SUBMISSION}")}],
            "nothing else",
        ),
        (turns(SWE_TURNS), f"not before turn {SWE_TURNS}"),
    ],
)
def test_what_is_not_of_the_form_is_said(row: list[dict[str, str]], words: str) -> None:
    assert words in problem(row)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "critic", "content": "x"}, "known role: 'critic'"),
        ({"role": "user", "content": [{"type": "text"}]}, "no text"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]},
            "without a command",
        ),
    ],
)
def test_a_message_without_a_place_is_named(message: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rewritten([*START, message])
