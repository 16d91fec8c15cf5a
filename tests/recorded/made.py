"""Made data sets in the forms in which validators mount them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from miner.config.contract import INTERCODE_DATASET, SWE_DATASET, SWE_SUBMISSION, dataset_folder

EVALUATOR = '''
NAMES = "execute_bash", "submit"
INTERCODE_TOOL_SYSTEM_PROMPT = """A shell,
as "they" say it."""
def _function_tool(name, description, parameters):
    return name, description, parameters
def build_intercode_action_tools():
    return [
        _function_tool(NAMES, "Runs it.", {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What."}},
            "required": ["command"],
            "additionalProperties": False,
        }),
        _function_tool(NAMES, "Hands it in.", {
            "type": "object", "properties": {}, "required": [], "additionalProperties": False,
        }),
    ]
def _format_tool_history(history):
    if not history:
        return "No commands have been executed yet."
    return "\\n".join(history)
def _build_tool_messages(query, history, turn):
    user_prompt = (
        f"Question: {query}\\n\\n"
        f"Previous steps:\\n{_format_tool_history(history)}\\n\\n"
        f"Turn {turn}: call exactly one tool now."
    )
    return INTERCODE_TOOL_SYSTEM_PROMPT, user_prompt
'''
"""Parts of the tournament's evaluator of InterCode that are read, with other sentences."""


def block(command: str) -> str:
    """A reply's block of bash."""
    return f"```bash\n{command}\n```"


def swe_row(number: int, replies: int = 3) -> list[dict[str, str]]:
    """Messages of a SWE-ZERO row: a task of its own, so many replies, the last of which submits."""
    row = [
        {"role": "system", "content": "You fix bugs, one block of bash at a time."},
        {
            "role": "user",
            "content": f"In the repository shop/cart-{number}, item {number} is lost.",
        },
    ]
    for turn in range(1, replies):
        row.append(
            {"role": "assistant", "content": f"THOUGHT: look\n\n{block(f'cat {turn}.py')}\n"}
        )
        row.append({"role": "user", "content": f"Observation: cart = {turn}\n"})
    submission = SWE_SUBMISSION.partition(" && ")[0]
    return [*row, {"role": "assistant", "content": f"THOUGHT: done\n\n{block(submission)}\n"}]


def write_rows(folder: Path, conversations: Sequence[Sequence[dict[str, Any]]]) -> Path:
    """A data set of one file; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"messages": messages}) for messages in conversations)
    (folder / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def swe_zero(root: Path, count: int = 40) -> Path:
    """The final's data set, mounted below `root`, with `count` tasks."""
    return write_rows(root / dataset_folder(SWE_DATASET), [swe_row(n) for n in range(count)])


def intercode(root: Path, count: int = 40) -> Path:
    """InterCode's data set, mounted below `root`, with `count` questions."""
    folder = root / dataset_folder(INTERCODE_DATASET)
    folder.mkdir(parents=True, exist_ok=True)
    rows = ({"instruction": f"Make {n}", "response": f"mkdir /testbed/{n}"} for n in range(count))
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder
