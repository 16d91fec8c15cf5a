"""Rows of software tasks in the form that the final's agent reads."""

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Template

from miner.config.contract import SWE_SUBMISSION, SWE_TURNS
from miner.recorded.swe_form import BLOCK, fault, observation, problem, rewritten


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


def test_a_row_of_swe_zero_becomes_one_of_the_finals_form() -> None:
    """Outputs without return codes, a reply that the agent refused, the first version's submission
    with a text after it."""
    row = [
        *START,
        {"role": "assistant", "content": f"THOUGHT: I look.\n\n{block('ls')}\n"},
        {"role": "user", "content": "Observation: a.py\n"},
        {"role": "assistant", "content": f"Two:\n{block('ls')}\n{block('pwd')}"},
        {"role": "user", "content": "One block, please."},
        {"role": "assistant", "content": block("cat a.py")},
        {"role": "user", "content": "Observation: x = 1\n"},
        {"role": "assistant", "content": f"Done.\n\n{block(f'echo {SWE_SUBMISSION.split()[1]}')}"},
        {"role": "user", "content": "diff --git a/a.py"},
    ]
    assert problem(row) != ""
    found = rewritten(row)
    assert problem(found) == ""
    assert [message["content"] for message in found[2:]] == [
        f"THOUGHT: I look.\n\n{block('ls')}",
        "<returncode>0</returncode>\n<output>\na.py\n</output>",
        block("cat a.py"),
        "<returncode>0</returncode>\n<output>\nx = 1\n</output>",
        f"Done.\n\n{block(SWE_SUBMISSION)}",
    ]


def test_of_several_blocks_the_first_is_learned_if_it_was_run() -> None:
    """The set's agent runs the first, and ends without an output where it submits."""
    edit, look = block("sed -i s/1/2/ a.py"), block("cat a.py")
    row = [
        *START,
        {"role": "assistant", "content": f"I edit.\n\n{edit}\nThen:\n{look}"},
        {"role": "user", "content": "Observation: "},
        {"role": "assistant", "content": f"{look}\n{look}"},
        {"role": "tool", "content": "x = 2\n"},
        {"role": "assistant", "content": f"{look}\n{edit}"},
        {"role": "user", "content": "One block, please."},
        {"role": "assistant", "content": f"{block(f'echo {SWE_SUBMISSION.split()[1]}')}\n{edit}"},
    ]
    found = rewritten(row)
    assert [message["content"] for message in found[2:]] == [
        f"I edit.\n\n{edit}",
        observation(""),
        look,
        observation("x = 2\n"),
        block(SWE_SUBMISSION),
    ]
    assert problem(found) == ""


def test_a_call_beside_a_block_in_the_text_is_no_reply_with_the_text_s_block() -> None:
    """The output is the call's."""
    reply = call("cat a.py", f"Try {block('python a.py')}")
    row = [*START, reply, {"role": "tool", "content": "x = 1"}, SUBMIT]
    assert rewritten(row) == rewritten([*START, SUBMIT])


def test_results_of_several_calls_do_not_take_turns() -> None:
    """All of them ran: a row with the first alone would build on what it does not show."""
    calls = call("ls")["tool_calls"] + call("rm a.py")["tool_calls"]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    outputs = [{"role": "tool", "content": "a.py"}, {"role": "tool", "content": ""}]
    assert "take turns" in problem(rewritten([*START, reply, *outputs, SUBMIT]))


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (f"I look.\n{block('ls')}", ""),
        (f"<think>{block('rm')}</think>{block('ls')}", ""),
        (block(SWE_SUBMISSION), ""),
        ("Done.", "0 blocks of bash"),
        (block("ls") * 2, "2 blocks of bash"),
        (block(f"ls && {SWE_SUBMISSION}"), "submission beside other commands"),
    ],
)
def test_a_reply_that_the_agent_would_not_take_has_a_fault(reply: str, found: str) -> None:
    assert fault(reply) == found


def agents_file(name: str) -> str:
    """A text of the agent's package, which is not imported: it lacks what it depends on."""
    spec = find_spec("minisweagent")
    if spec is None or spec.origin is None:
        pytest.skip("the package mini-swe-agent is not installed: run make setup")
    return (Path(spec.origin).parent / name).read_text()


@pytest.mark.parametrize("config", ["default.yaml", "extra/swebench.yaml"])
@pytest.mark.parametrize(
    ("length", "returncode"), [(0, 0), (40, 1), (9999, 0), (10000, 0), (30000, 2)]
)
def test_observations_are_the_agents_own(config: str, length: int, returncode: int) -> None:
    """But for the sentences between return code and output of a long one."""
    template = yaml.safe_load(agents_file(f"config/{config}"))["agent"][
        "action_observation_template"
    ]
    output = ("line of output\n" * 3000)[:length]
    shown = Template(template).render(output={"output": output, "returncode": returncode})
    plain = re.sub(r"<warning>.*?</warning>\s*", "", shown, flags=re.DOTALL)
    assert observation(output, returncode) == plain


def test_an_output_that_the_sets_agent_has_cut_is_shown_as_a_long_one() -> None:
    head, tail = "a\n" * 2000, "b\n" * 2000
    cut = f"{head}\n\n... (output truncated, 345 chars elided) ...\n\n{tail}"
    whole = observation(f"{head}{'c' * 345}{tail}".ljust(10_000))
    shown = observation(cut, 1)
    assert re.findall(r"<(?!/)(\w+)>", shown) == re.findall(r"<(?!/)(\w+)>", whole)
    assert "<returncode>1</returncode>" in shown
    assert f"<output_head>\n{head}\n</output_head>" in shown
    assert "<elided_chars>\n345 characters elided\n</elided_chars>" in shown
    assert f"<output_tail>\n{tail}\n</output_tail>" in shown
    assert "truncated" not in shown


def test_blocks_and_the_submission_are_found_as_the_agent_finds_them() -> None:
    regex = next(
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(agents_file("agents/default.py")))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "action_regex"
    )
    assert (BLOCK.pattern, bool(BLOCK.flags & re.DOTALL)) == (regex, True)
    asked = yaml.safe_load(agents_file("config/extra/swebench.yaml"))["agent"]["instance_template"]
    assert SWE_SUBMISSION in BLOCK.findall(asked)


@pytest.mark.parametrize("count", [1, 2, SWE_TURNS - 1])
def test_rows_of_the_form_have_no_problem(count: int) -> None:
    assert problem(turns(count)) == ""


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (START[1:], "does not begin with"),
        ([*turns(1), START[1], START[1]], "take turns"),
        ([*START, {"role": "assistant", "content": f"</think>{block('ls')}"}], "holds a thought"),
        (turns(2)[:3], "must submit"),
        (
            [*START, {"role": "assistant", "content": block(f"ls && {SWE_SUBMISSION}")}],
            "nothing else",
        ),
        (turns(SWE_TURNS), f"not before turn {SWE_TURNS}"),
    ],
)
def test_what_is_not_of_the_form_is_reported(row: list[dict[str, str]], words: str) -> None:
    assert words in problem(row)


@pytest.mark.parametrize("arguments", ["{", "[" * 100_000])
def test_a_call_without_a_command_is_named(arguments: str) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}
    with pytest.raises(ValueError, match="message 2 calls a tool without a command"):
        rewritten([*START, message])
