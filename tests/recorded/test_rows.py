"""Recorded conversations: what is read of mounted data sets, held out, and learned."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from miner.channels.recorded import RecordedChannel
from miner.config.contract import mounted_datasets
from miner.config.settings import EnvironmentSettings, Settings
from miner.recorded import conversations, record_files
from miner.recorded.conversations import Conversations, read_conversations
from miner.recorded.environment import RecordedSource, RecordedTasks
from miner.recorded.rows import RecordedRows
from miner.recorded.swe_form import problem
from miner.rollout.renderer import ChatRenderer
from tests.builders import THINK_STRIPPING, build_tokenizer, save_base, trl_template
from tests.recorded.made import block, swe_row, swe_zero, write_rows

RENDERER = ChatRenderer(build_tokenizer())
CHAT = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "move"},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "thanks"},
]
CALL = {"function": {"name": "game_action", "arguments": '{"action_id": 3}'}}
TOOL = {"type": "function", "function": {"name": "game_action", "parameters": {"properties": {}}}}
SHOWN = {"type": "function", "function": {"description": "", **TOOL["function"], "strict": False}}


def read(folder: Path, *records: Any) -> Conversations:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    read_conversations.cache_clear()
    return read_conversations((folder,))


def rows(found: Conversations, most_tokens: int = 2000, renderer: ChatRenderer = RENDERER) -> Any:
    return RecordedRows(found, renderer, "qwen25", most_tokens)


def encoded(reply: str) -> tuple[int, ...]:
    return RENDERER.encode_reply(reply)


def test_a_conversation_is_one_row_with_loss_on_its_replies(tmp_path: Path) -> None:
    (row,) = rows(read(tmp_path, {"messages": CHAT})).of(0)
    assert row.prompt_ids == RENDERER.encode(RENDERER.render(CHAT[:2]))
    whole = RENDERER.encode(RENDERER.render(CHAT[:4])) + encoded("four")
    assert row.prompt_ids + row.completion_ids == whole
    learned = [id for id, loss in zip(row.completion_ids, row.loss_mask, strict=True) if loss]
    assert tuple(learned) == encoded("three") + encoded("four")
    assert row.weight == 1.0
    assert all(math.isnan(p) == bool(m) for p, m in zip(row.logprobs, row.loss_mask, strict=True))


def test_a_template_that_rewrites_the_past_gives_several_rows(tmp_path: Path) -> None:
    chat = [dict(each) for each in CHAT]
    chat[2]["content"] = "<think>hm</think>three"
    found = read(tmp_path, {"messages": chat})
    first, second = rows(found, renderer=ChatRenderer(build_tokenizer(THINK_STRIPPING))).of(0)
    assert first.completion_ids == encoded("<think>hm</think>three")
    assert second.completion_ids == encoded("four")


def test_what_does_not_fit_is_left_out_from_its_end(tmp_path: Path) -> None:
    found = read(tmp_path, {"messages": CHAT})
    (whole,) = rows(found).of(0)
    size = len(whole.prompt_ids) + len(whole.completion_ids)
    (part,) = rows(found, size - 1).of(0)
    assert part.completion_ids == encoded("three")
    assert rows(found, len(whole.prompt_ids)).of(0) == []


def test_a_conversation_that_the_template_cannot_take_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `{{ message.content + 1 }}` does, with an error of Python's own."""

    def refuses(*messages: object) -> None:
        raise TypeError('can only concatenate str (not "int") to str')

    monkeypatch.setattr("miner.rollout.renderer.ChatRenderer.encode_reply", refuses)
    assert rows(read(tmp_path, {"messages": CHAT})).of(0) == []


def test_calls_become_the_models_own_form(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    (row,) = rows(read(tmp_path, {"messages": json.dumps([CHAT[1], reply])})).of(0)
    written = '<tool_call>\n{"name": "game_action", "arguments": {"action_id": 3}}\n</tool_call>'
    assert row.completion_ids == encoded(written)


def test_records_of_another_form_are_counted_and_left_out(tmp_path: Path) -> None:
    records = (
        {"messages": json.dumps(CHAT)},
        {"messages": json.dumps(CHAT[:2])},
        {"messages": json.dumps([{"role": "wizard", "content": "x"}])},
        {"messages": "no list"},
        {"messages": [CHAT[1], CHAT[2], CHAT[2]]},
        {"messages": [CHAT[1], {"role": "assistant", "content": None, "function_call": CALL}]},
        *({"messages": [CHAT[1], {"role": "assistant", "content": str(n)}]} for n in range(6)),
    )
    found = read(tmp_path, *records)
    assert len(found.every) == 5
    assert found.left_out["a reply to a reply"] == 1
    assert found.left_out["more than 4 of one task"] == 2
    assert found.left_out["a reply without text or call"] == 1
    assert "7 left out" in found.described


def test_a_damaged_file_and_an_empty_folder_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    found = read(tmp_path, {"messages": CHAT})
    assert len(found.every) == 1
    assert found.left_out["bad.parquet cannot be read"] == 1
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/rows.jsonl.gz").write_bytes(b"")
    for folder in ("away", "packed"):
        nothing = read_conversations((tmp_path / folder,))
        assert (nothing.every, RecordedTasks(nothing).held_out(5, 0)) == ([], [])
        assert nothing.left_out == {f"no jsonl, json or parquet file in {folder}": 1}


def test_records_of_games_that_are_not_learned_are_left_out(tmp_path: Path) -> None:
    tags = ({}, {"env": "othello"}, {"game": "clobber"}, {"env": "shop"}, {"env": ["clobber"]})
    records = [{"messages": [CHAT[1], CHAT[2]], **tag} for tag in tags]
    assert len(read(tmp_path, *records).every) == 4  # of one task
    read_conversations.cache_clear()
    found = read_conversations((tmp_path,), ("othello", "leduc_poker"))
    assert (len(found.every), found.left_out) == (4, {"a game that is not learned": 1})


def test_a_line_that_is_no_record_costs_itself_alone(tmp_path: Path) -> None:
    found = read(tmp_path, {"messages": CHAT}, "{broken", "3", {"messages": CHAT, "more": {"x": 1}})
    assert len(found.every) == 2
    assert found.left_out == {"no JSON object": 2}


def test_each_line_of_a_small_file_is_read_once_whatever_the_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(record_files, "STRETCH_BYTES", size)
        found = read(tmp_path, *({"messages": swe_row(n)} for n in range(50)))
        assert len(found.every) == 50


def test_each_of_several_sets_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MOST_CHARACTERS", 4000)
    folders = tuple(
        write_rows(tmp_path / name, [swe_row(number) for number in numbers])
        for name, numbers in (("one", range(100)), ("other", range(100, 200)))
    )
    found = read_conversations(folders)
    of_one = sum(
        int(one.messages[1]["content"].split("-")[1].split(",")[0]) < 100 for one in found.every
    )
    assert 5 < of_one < 20
    assert 5 < len(found.every) - of_one < 20


def test_rows_of_the_finals_set_are_rewritten_and_others_are_not(tmp_path: Path) -> None:
    read_conversations.cache_clear()
    found = read_conversations((swe_zero(tmp_path, 4),))
    for conversation in found.every:
        assert conversation.software
        assert problem(conversation.messages) == ""
    offered = {"function": {"name": "bash", "parameters": {"properties": {}}}}
    [file] = swe_zero(tmp_path / "with tools", 1).iterdir()
    file.write_text(json.dumps({"messages": swe_row(0), "tools": [offered]}))
    assert read_conversations((file.parent,)).every[0].tools == ()  # the final's agent has none
    other = read_conversations((write_rows(tmp_path / "other", [swe_row(0)]),))
    assert other.every[0].messages == tuple(swe_row(0))


def test_no_task_is_both_held_out_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several attempts at a task begin alike."""
    monkeypatch.setattr(conversations, "MOST_HELD_OUT", 3)
    attempts = [swe_row(task, replies) for task in range(20) for replies in (2, 3)]
    found = read_conversations((write_rows(tmp_path / "data", attempts),))
    tasks = {
        name: {number // 2 for number in getattr(found, name)} for name in ("held_out", "trained")
    }
    assert tasks["held_out"] & tasks["trained"] == set()
    assert len(tasks["held_out"]) == 3
    assert sorted(found.held_out + found.trained) == list(range(40))


def test_batches_have_every_conversation_once_before_any_comes_again(tmp_path: Path) -> None:
    made = rows(read_conversations((swe_zero(tmp_path, 10),)))
    count = len(made.conversations.trained)
    numbers = [number for first in range(0, 3 * count, 3) for number in made.batch(first, 3, 0)]
    for epoch in range(3):
        part = numbers[epoch * count :][:count]
        assert sorted(part) == sorted(made.conversations.trained)
    assert numbers[:count] != numbers[count : 2 * count]
    assert made.batch(5, 7, 0) == numbers[5:12]


def test_some_rows_have_as_many_replies_as_asked_for(tmp_path: Path) -> None:
    made = rows(read_conversations((swe_zero(tmp_path, 10),)))
    assert len(made.some(4, 9, "a")) == 2  # of three replies each
    assert made.some(4, 9, "a") == made.some(4, 9, "a")
    assert len(made.some(99, 9, "a")) == len(made.conversations.trained)


def test_conversations_beside_games_weigh_as_many_usual_replies_as_were_asked_for(
    tmp_path: Path,
) -> None:
    made = rows(read_conversations((swe_zero(tmp_path, 10),)))
    (row,) = made.some(1, 5, "a")
    assert row.weight * sum(row.loss_mask) == pytest.approx(1 * 5)
    two = made.some(4, 5, "a")
    assert sum(row.weight * sum(row.loss_mask) for row in two) == pytest.approx(4 * 5)
    (short,) = made.some(1, 10_000, "a")
    assert short.weight == 1.0
    assert row.entropy is None  # it has no part in the distance from the targets beside it
    assert made.of(0)[0].entropy == 0.0


def test_a_software_task_without_room_for_its_submission_teaches_nothing(tmp_path: Path) -> None:
    found = read_conversations((swe_zero(tmp_path, 10),))
    (whole,) = rows(found).of(0)
    size = len(whole.prompt_ids) + len(whole.completion_ids)
    assert rows(found, size).of(0)
    assert rows(found, size - 1).of(0) == []
    assert rows(found, 30).some(9, 5, "a") == []


async def test_an_episode_asks_at_three_places_behind_the_recorded_past(tmp_path: Path) -> None:
    found = read_conversations((write_rows(swe_zero(tmp_path), [swe_row(0, replies=7)]),))
    environment = RecordedSource(found, "qwen25").open()
    (task,) = RecordedTasks(found).held_out(9, 0)
    asked = [(await environment.reset(task)).messages]
    for _ in range(2):
        asked.append((await environment.step(block("other"))).messages)
    last = await environment.step(block("last"))
    whole = found.every[0].messages
    assert asked == [whole[:2], whole[:8], whole[:14]]
    assert (last.done, last.score, last.valid) == (True, 1.0, True)


@pytest.mark.parametrize("reply", ["no block", block("a") * 2])
async def test_a_reply_of_another_form_ends_it(tmp_path: Path, reply: str) -> None:
    found = read_conversations((swe_zero(tmp_path, 2),))
    environment = RecordedSource(found, "qwen25").open()
    await environment.reset(RecordedTasks(found).held_out(1, 0)[0])
    end = await environment.step(reply)
    assert (end.done, end.score, end.valid) == (True, 0.0, False)
    assert "blocks of bash" in end.fault


@pytest.mark.parametrize(("reply", "valid"), [("three", False), ("<tool_call>", True)])
async def test_where_the_record_calls_a_tool_so_must_the_model(
    tmp_path: Path, reply: str, valid: bool
) -> None:
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    found = read(tmp_path, {"messages": [CHAT[1], said], "tools": [TOOL]})
    environment = RecordedSource(found, "qwen25").open()
    await environment.reset(RecordedTasks(found).held_out(1, 0)[0])
    call = '\n{"name": "game_action", "arguments": {"action_id": 9}}\n</tool_call>'
    end = await environment.step(reply + call * reply.startswith("<"))
    assert end.valid is valid


def test_folders_are_those_that_the_validator_names() -> None:
    environ = {"MINER_DATASETS_DIR": "/data", "MINER_DATASETS": "org/one, org/two"}
    assert mounted_datasets(environ) == ["/data/org--one", "/data/org--two"]
    assert mounted_datasets({"MINER_DATASETS": "org/one"}) == []
    settings = Settings.load(None, ["environment.channel=duel"], environ)
    for found in (settings.demonstrations.datasets, settings.environment.datasets):
        assert [str(folder) for folder in found] == mounted_datasets(environ)


async def test_tools_are_part_of_every_prompt_in_the_engines_shape(tmp_path: Path) -> None:
    renderer = ChatRenderer(build_tokenizer(trl_template("qwen2_5")))
    found = read(tmp_path, {"messages": CHAT, "tools": [TOOL]})
    row = rows(found, renderer=renderer).of(0)[0]
    assert row.prompt_ids == renderer.encode(renderer.render(CHAT[:2], [SHOWN]))
    environment = RecordedSource(found, "qwen25").open()
    task = RecordedTasks(found).held_out(1, 0)[0]
    assert (await environment.reset(task)).tools == (SHOWN,)
    assert (await environment.step("three")).tools == (SHOWN,)


async def test_calls_are_written_as_the_model_will_be_read(tmp_path: Path) -> None:
    wanted = EnvironmentSettings(channel="recorded", datasets=(swe_zero(tmp_path),))
    model = save_base(tmp_path / "a-llama")
    assert (await RecordedChannel(wanted, model).open()).family == "llama3"
    named = wanted.model_copy(update={"tool_parser": "hermes"})
    assert (await RecordedChannel(named, model).open()).family == "hermes"


@pytest.mark.parametrize(
    ("calls", "tools", "reason"),
    [
        ([{"function": {"name": "f", "arguments": "[3]"}}], [TOOL], "arguments are no object"),
        ([{"function": {"name": "f", "arguments": "null"}}], [TOOL], "arguments are no object"),
        ([{"function": {"name": "f", "arguments": "{"}}], [TOOL], "arguments are no JSON"),
        (1, [TOOL], "tool calls that are no list"),
        ([], [{"type": "function", "function": {"name": "f"}}], "a tool of an unknown form"),
        ([], [3], "a tool of an unknown form"),
        ([], "[" * 100_000, "text instead of a list"),
    ],
)
def test_calls_and_tools_of_another_form_end_no_run(
    tmp_path: Path, calls: Any, tools: Any, reason: str
) -> None:
    reply = {"role": "assistant", "content": "three", "tool_calls": calls}
    found = read(tmp_path, {"messages": [CHAT[1], reply], "tools": tools})
    assert not found.every
    assert reason in found.described


def test_a_number_without_an_end_is_another_form_too(tmp_path: Path) -> None:
    row = [dict(each) for each in swe_row(1)]
    row[3] |= {"role": "tool", "returncode": math.inf}
    write_rows(swe_zero(tmp_path), [row])
    read_conversations.cache_clear()
    found = read_conversations((swe_zero(tmp_path, 0),))
    assert not found.every
