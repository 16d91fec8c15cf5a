"""Files of mounted data sets: the records of them that are looked at."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

from miner.recorded import conversations, record_files
from miner.recorded.conversations import read_conversations
from tests.recorded.made import swe_row
from tests.recorded.test_rows import CHAT, TOOL


def test_members_that_only_a_parquet_file_has_are_neither_taught_nor_shown(tmp_path: Path) -> None:
    """A column of objects has all members of all of them, those that are not there as nulls."""
    described = {"type": "integer"}
    other = {"name": "note", "parameters": {"properties": {"slot": described}}}
    tools = [TOOL["function"] | {"parameters": {"properties": {"id": described}}}, other]
    calls = [
        {"function": {"name": "game_action", "arguments": {"id": 3}}},
        {"function": {"name": "note", "arguments": {"slot": 1}}},
    ]
    messages = [
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    made = [{"messages": messages, "tools": [{"function": tool} for tool in tools]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), tmp_path / "a.parquet")
    read_conversations.cache_clear()
    (one,) = read_conversations((tmp_path,)).every
    assert [call.arguments for call in one.calls[1]] == ['{"id": 3}', '{"slot": 1}']
    shown = [tool["function"]["parameters"]["properties"] for tool in one.tools]
    assert shown == [{"id": described}, {"slot": described}]


def test_a_line_that_is_nested_too_deep_costs_itself_alone(tmp_path: Path) -> None:
    good = json.dumps({"messages": CHAT})
    (tmp_path / "a.jsonl").write_text("\n".join([good, "[" * 100_000, good, good]))
    read_conversations.cache_clear()
    assert len(read_conversations((tmp_path,)).every) == 3


def test_a_list_in_a_json_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps([{"messages": CHAT}] * 3))
    read_conversations.cache_clear()
    assert len(read_conversations((tmp_path,)).every) == 3


@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet"])
def test_of_a_set_that_is_sorted_by_task_all_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two files of 30 tasks with 40 attempts each, of which one in ten is looked at."""
    monkeypatch.setattr(conversations, "MOST_READ", 240)
    monkeypatch.setattr(record_files, "STRETCH_BYTES", 2048)
    for file in range(2):
        made = [{"messages": swe_row(30 * file + n // 40)} for n in range(30 * 40)]
        if kind == "parquet":
            table = pyarrow.Table.from_pylist(made)
            pyarrow.parquet.write_table(table, tmp_path / f"{file}.parquet", row_group_size=100)
        elif kind == "json":
            (tmp_path / f"{file}.json").write_text(json.dumps(made))
        else:
            (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, made)))
    read_conversations.cache_clear()
    found = read_conversations((tmp_path,))
    tasks = {one.messages[1]["content"] for one in found.every}
    assert len(tasks) > 50
    assert 150 < len(found.every) + found.left_out.total() <= 240
    assert {*found.left_out} <= {"more than 4 of one task"}


@pytest.mark.parametrize("rows", [20, 100])
def test_all_row_groups_give_something_whatever_their_size(tmp_path: Path, rows: int) -> None:
    made = [{"number": number} for number in range(3000)]
    table = pyarrow.Table.from_pylist(made)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    for most in (300, 1950, 2999, 3000, 4000):
        read_ = [each["number"] for each in record_files.some_records(tmp_path, most, Counter())]
        assert len(set(read_)) == len(read_) <= most
        assert len(read_) > 0.9 * min(most, 3000)
        assert {number // rows for number in read_} == set(range(3000 // rows))


def test_a_large_row_group_is_not_decoded_for_a_few_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [{"number": number} for number in range(3000)]
    for name in ("a", "b"):
        table = pyarrow.Table.from_pylist(made)
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    decode, decoded = pyarrow.parquet.ParquetFile.iter_batches, []

    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        for batch in decode(*given, **named):
            decoded.append(len(batch))
            yield batch

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", counted)
    found = [each["number"] for each in record_files.some_records(tmp_path, 10, Counter())]
    assert found == [0, 10, 20, 30, 40] * 2
    assert sum(decoded) < 200


@pytest.mark.parametrize("longest", [10, 3000])
def test_a_set_of_fewer_lines_than_are_read_is_read_whole(tmp_path: Path, longest: int) -> None:
    draw = Random(0)
    lines = (json.dumps([n, "x" * draw.randrange(longest)]) for n in range(2000))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = [each[0] for each in record_files.some_records(tmp_path, 4000, Counter())]
    assert sorted(found) == list(range(2000))
    part = [each[0] for each in record_files.some_records(tmp_path, 500, Counter())]
    assert 300 < len(set(part)) == len(part) <= 500


def test_a_file_without_line_breaks_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * (8 << 20))
    assert [*record_files.some_records(tmp_path, 100, Counter())] == [None]
