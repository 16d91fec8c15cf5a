"""InterCode's rows become the turns that are graded, in the words of the tournament's evaluator."""

import json
from pathlib import Path
from typing import Any

import pytest

from miner.config.contract import DUEL_TURN_TOKENS, INTERCODE_DATASET, dataset_folder
from miner.config.errors import ConfigurationError
from miner.duel.tools import shaped
from miner.duel.tournament_files import COPY
from miner.recorded import intercode_form
from miner.recorded.conversations import Conversations, read_conversations
from miner.recorded.intercode_form import FILE, prints_nothing, read_words, turns
from miner.recorded.rows import RecordedRows
from miner.rollout.renderer import ChatRenderer
from tests.builders import build_tokenizer
from tests.duel.golden import golden, needs_transcripts, transcript
from tests.recorded.made import EVALUATOR


@pytest.fixture(autouse=True)
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder has no copy of the tournament's; this one is elsewhere."""
    monkeypatch.chdir(tmp_path)
    read_words.cache_clear()
    read_conversations.cache_clear()
    path = tmp_path / "clone" / FILE
    path.parent.mkdir(parents=True)
    path.write_text(EVALUATOR)
    return tmp_path / "clone"


def adopt(copy: Path) -> None:
    """As `python -m miner prompts` does."""
    (COPY / FILE).parent.mkdir(parents=True)
    (COPY / FILE).write_bytes((copy / FILE).read_bytes())


def mounted(root: Path, *records: Any) -> Conversations:
    folder = root / dataset_folder(INTERCODE_DATASET)
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    return read_conversations((folder,))


def row(instruction: str, response: str) -> dict[str, str]:
    return {"instruction": instruction, "response": response}


def test_sentences_and_tools_are_the_evaluators(copy: Path) -> None:
    words = read_words(copy)
    assert words.system == 'A shell,\nas "they" say it.'
    made = [line["tool"] for line in golden("tools") if line["set"] == "intercode"]
    for tool, recorded, said in zip(words.tools, made, ("Runs it.", "Hands it in."), strict=True):
        recorded["function"]["description"] = said
        for argument in recorded["function"]["parameters"]["properties"].values():
            argument["description"] = "What."
        assert json.dumps(tool) == json.dumps(shaped([recorded])[0])  # the order counts


def test_a_question_is_a_first_turn_that_runs_the_command(copy: Path) -> None:
    adopt(copy)
    ((user, call),) = turns(row(" Print a.txt ", 'cat "/testbed/a.txt"\n'))
    assert user == (
        "Question: Print a.txt\n\nPrevious steps:\nNo commands have been executed yet.\n\n"
        "Turn 1: call exactly one tool now."
    )
    assert (call.name, json.loads(call.arguments)) == (
        "execute_bash",
        {"command": 'cat "/testbed/a.txt"'},
    )


def test_what_is_known_to_print_nothing_is_handed_in(copy: Path) -> None:
    adopt(copy)
    _, (user, call) = turns(row("Make it", 'touch "a b"'))
    assert user == (
        'Question: Make it\n\nPrevious steps:\nTool 1: execute_bash(command="touch \\"a b\\"")\n'
        "Observation 1: \n\nTurn 2: call exactly one tool now."
    )
    assert (call.name, call.arguments) == ("submit", "{}")


@needs_transcripts
def test_turns_are_those_that_the_evaluator_has_asked_for(copy: Path) -> None:
    adopt(copy)
    seen = 0
    for line in transcript("intercode"):
        for tool, arguments in line["turns"][0]["reply"].get("calls") or []:
            command = str(arguments.get("command", "")).strip()
            if tool == "execute_bash" and command and "cd " not in command:
                made = turns(row(line["query"], arguments["command"]))
                for (user, _), turn in zip(made, line["turns"], strict=False):
                    assert user == turn["request"]["messages"][1]["content"]
                    seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("command", "silent"),
    [
        ("mkdir -p /a/b", True),
        ("cp a b && rm c", True),
        ("echo three >> /testbed/a.txt", True),
        ("echo a > /dev/stderr", False),
        ("mkdir a\nls -l", False),
        ("mkdir a & ls", False),
        ("cat a || echo > b", False),
        ("chmod -c 644 a", False),
        ("curl http://x > f", False),
        ("echo 'a > b'", False),
        ("sort a | uniq > /tmp/b", False),
        ("cp -v a b", False),
        ("rm -i a", False),
        ("cat a", False),
        ("awk '$1 > 3' a", False),
        ("find . -name x 2> /dev/null", False),
        ("ls > a; cat a", False),
        ("rm $(ls)", False),
        ("cp a b | cat", False),
        ("mkdirs a", False),
    ],
)
def test_commands_that_may_print_are_not(command: str, silent: bool) -> None:
    assert prints_nothing(command) is silent


def test_the_sets_other_half_is_left_out_and_counted(tmp_path: Path) -> None:
    found = mounted(
        tmp_path,
        row("Show it", "cat a"),
        row("Sort it", "Use this:\n```python\nsorted(x)\n```"),
        row("Sum it", "def f(x):\n    return sum(x)"),
        row("Long", "x" * 600),
        row("Nothing", " "),
        row("Moves", "cd /testbed && ls"),
        {"instruction": "No answer"},
        {"messages": [{"role": "user", "content": "hello"}]},
    )
    assert len(found.every) == 1
    assert found.left_out == {
        "a response that is no command": 3,
        "an empty instruction or response": 1,
        "a change of the folder with more after it": 1,
        "no instruction and response": 2,
    }


def test_both_turns_of_a_question_are_learned_or_held_out(tmp_path: Path) -> None:
    found = mounted(tmp_path, *(row(f"Make {n}", f"mkdir {n}") for n in range(20)))
    assert len(found.every) == 40
    assert {number // 2 for number in found.held_out} & {n // 2 for n in found.trained} == set()
    assert len(found.held_out) == 8


def test_a_row_teaches_the_call_in_the_models_own_form(tmp_path: Path) -> None:
    found = mounted(tmp_path, row("Show it", "cat a"))
    renderer = ChatRenderer(build_tokenizer())
    (taught,) = RecordedRows(found, renderer, "qwen25", 4000).of(0)
    written = (
        '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat a"}}\n</tool_call>'
    )
    assert taught.completion_ids == renderer.encode_reply(written)
    assert found.every[0].tools == intercode_form.read_words().tools


def test_a_row_that_is_longer_than_a_duels_turn_is_not_taught(tmp_path: Path) -> None:
    """Plans hold no longer one, whatever an episode may have."""
    lengths = range(0, 4 * DUEL_TURN_TOKENS, DUEL_TURN_TOKENS // 8)
    found = mounted(tmp_path, *(row(f"{'?' * length} {length}", "cat a") for length in lengths))
    rows = RecordedRows(found, ChatRenderer(build_tokenizer()), "qwen25", 4 * DUEL_TURN_TOKENS)
    made = [each for number in range(len(lengths)) for each in rows.of(number)]
    longest = max(len(each.prompt_ids) + len(each.completion_ids) for each in made)
    assert len(made) < len(lengths)
    assert DUEL_TURN_TOKENS // 2 < longest <= DUEL_TURN_TOKENS


@pytest.mark.parametrize(
    "change",
    [
        ("{query}", "{question}"),
        ("Turn {turn}", "Turn {turn} of {turn}"),
        ("{query}", "{turn}"),
        ('return "No', 'return history or "No'),
        ("INTERCODE_TOOL_SYSTEM_PROMPT =", "PROMPT ="),
        ('"Hands it in."', "HANDED"),
        ("def build_intercode_action_tools", "def tools"),
    ],
)
def test_an_evaluator_of_another_form_is_named(copy: Path, change: tuple[str, str]) -> None:
    (copy / FILE).write_text(EVALUATOR.replace(*change))
    with pytest.raises(ConfigurationError, match=r"intercode\.py"):
        read_words(copy)
