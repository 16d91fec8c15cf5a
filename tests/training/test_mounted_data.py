"""Mounted data sets: what is learned of them, and what is left out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from miner.config.contract import mounted_datasets
from miner.config.settings import load_settings
from miner.rollout.renderer import ChatRenderer
from miner.training.mounted_data import MountedData
from tests.builders import build_tokenizer

TOKENIZER = build_tokenizer()
RENDERER = ChatRenderer(TOKENIZER)
CHAT = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "move"},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "four"},
]
CALL = {"function": {"name": "game_action", "arguments": '{"action_id": 3}'}}


def _data(folder: Path, *records: Any, most_tokens: int = 2000) -> MountedData:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return MountedData([folder], RENDERER, "qwen25", most_tokens)


def test_each_reply_of_an_assistant_is_a_row_behind_what_was_said_before(tmp_path: Path) -> None:
    first, second = _data(tmp_path, {"messages": CHAT}).rows
    assert first.prompt_ids == RENDERER.encode(RENDERER.render(CHAT[:2]))
    assert first.completion_ids == RENDERER.encode_reply("three")
    assert second.prompt_ids == RENDERER.encode(RENDERER.render(CHAT[:4]))
    assert second.completion_ids == RENDERER.encode_reply("four")
    assert first.weight == 1.0
    assert all(map(math.isnan, first.logprobs))


def test_calls_become_the_models_own_form(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    (row,) = _data(tmp_path, {"messages": json.dumps([CHAT[1], reply])}).rows
    written = '<tool_call>\n{"name": "game_action", "arguments": {"action_id": 3}}\n</tool_call>'
    assert row.completion_ids == RENDERER.encode_reply(written)


def test_rows_of_another_form_and_long_ones_are_counted_and_left_out(tmp_path: Path) -> None:
    records = (
        {"messages": json.dumps(CHAT)},
        {"messages": json.dumps(CHAT[:2])},
        {"messages": json.dumps([{"role": "wizard", "content": "x"}])},
        {"messages": "no list"},
        {"messages": json.dumps([CHAT[1], {"role": "assistant", "content": "x" * 3000}])},
    )
    data = _data(tmp_path, *records, most_tokens=200)
    assert len(data.rows) == 2
    assert data.left_out.total() == 4
    assert data.left_out["longer than 200 tokens"] == 1
    assert "4 conversations left out" in data.described


def test_a_damaged_file_and_an_empty_folder_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    data = _data(tmp_path, {"messages": CHAT})
    assert len(data.rows) == 2
    assert data.left_out["bad.parquet cannot be read"] == 1
    assert MountedData([tmp_path / "away"], RENDERER, "qwen25", 100).rows == []


def test_some_rows_are_drawn_alike_for_equal_seeds(tmp_path: Path) -> None:
    data = _data(tmp_path, *({"messages": CHAT} for _ in range(5)))
    assert data.sample(4, "a") == data.sample(4, "a")
    assert len(data.sample(99, "a")) == 10


def test_folders_are_those_that_the_validator_names() -> None:
    environ = {"MINER_DATASETS_DIR": "/data", "MINER_DATASETS": "org/one, org/two"}
    assert mounted_datasets(environ) == ["/data/org--one", "/data/org--two"]
    assert mounted_datasets({"MINER_DATASETS": "org/one"}) == []
    settings = load_settings(None, ["environment.channel=duel"], environ)
    assert [str(folder) for folder in settings.demonstrations.datasets] == mounted_datasets(environ)
