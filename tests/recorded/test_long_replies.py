"""Replies that are longer than the tournament lets a turn be are not taught."""

import logging
from pathlib import Path
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.recorded import rows
from miner.recorded.conversations import read_conversations
from miner.rollout.renderer import ChatRenderer
from miner.training.supervised import with_rows
from tests.builders import build_tokenizer
from tests.recorded.made import swe_row, swe_zero, write_rows

RENDERER = ChatRenderer(build_tokenizer())


def replies(folder: Path, texts: list[str]) -> Path:
    """A data set of one chat with these replies."""
    chat = []
    for text in texts:
        chat += [{"role": "user", "content": "move"}, {"role": "assistant", "content": text}]
    return write_rows(folder, [chat])


def taught(folder: Path) -> tuple[list[Any], rows.RecordedRows]:
    read_conversations.cache_clear()
    made = rows.RecordedRows(read_conversations((folder,)), RENDERER, "qwen25", 8000)
    return made.of(0), made


@pytest.mark.parametrize(("longer", "learned"), [(0, 3), (1, 1)])
def test_a_conversation_ends_before_a_reply_that_is_longer_than_a_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: int, learned: int
) -> None:
    texts = ["a", "b" * 9, "c"]
    ids = [RENDERER.encode_reply(text) for text in texts]
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", len(ids[1]) - longer)
    (row,), _ = taught(replies(tmp_path, texts))
    found = [id for id, loss in zip(row.completion_ids, row.loss_mask, strict=True) if loss]
    assert found == [id for part in ids[:learned] for id in part]


def test_a_software_task_with_a_reply_above_its_own_limit_teaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = swe_zero(tmp_path, 1)
    longest = max(
        len(RENDERER.encode_reply(each["content"]))
        for each in read_conversations((folder,)).every[0].messages
        if each["role"] == "assistant"
    )
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", 1)
    for limit, count in ((longest, 1), (longest - 1, 0)):
        monkeypatch.setattr(rows, "SWE_REPLY_TOKENS", limit)
        assert len(taught(folder)[0]) == count


def test_what_is_left_out_is_counted_once_and_logged_as_the_number_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rows, "SWE_REPLY_TOKENS", 1)
    chats = [swe_row(number) for number in range(5)]
    with caplog.at_level(logging.WARNING):
        _, made = taught(write_rows(swe_zero(tmp_path), chats))
        for number in (*range(5), *range(5)):
            assert made.of(number) == []
    assert made.conversations.left_out == {"a reply above 1 tokens": 5}
    assert [line.split()[6] for line in caplog.messages] == ["1", "2", "4"]


def test_replies_that_are_not_taught_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three replies one is short enough."""
    long = {"role": "assistant", "content": "word " * 200}
    chats = [[*swe_row(number)[:4], long] for number in range(10)]
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", 150)
    _, made = taught(write_rows(tmp_path / "data", chats))
    assert len(made.some(3, 9, "a")) == 3


def test_conversations_that_give_no_row_are_tried_once_and_hold_up_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", 1)
    monkeypatch.setattr(rows, "MOST_TRIED", 3)
    reply = {"role": "assistant", "content": "word " * 9}
    chats = [[{"role": "user", "content": f"move {n}"}, reply] for n in range(20)]
    _, made = taught(write_rows(tmp_path / "data", chats))
    tried: list[int] = []
    render = made._rows
    monkeypatch.setattr(made, "_rows", lambda number: tried.append(number) or render(number))
    assert made.some(5, 9, "a") == []
    assert len(tried) == 3
    assert [made.some(5, 9, seed) for seed in "bcdefgh"] == [[]] * 7
    assert 3 < len(tried) == len(set(tried))


def test_conversations_that_give_no_row_are_not_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [
        [
            {"role": "user", "content": f"move {n}"},
            {"role": "assistant", "content": "a" * (1 + n % 2)},
        ]
        for n in range(12)
    ]
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", len(RENDERER.encode_reply("a")))
    _, made = taught(write_rows(tmp_path / "data", chats))
    tasks = [EpisodeTask("recorded", number, number, "none") for number in range(12)]
    short = [number for number in range(12) if made.of(number)]
    assert len(short) == 6
    assert [task.task_id for task in with_rows(made, tasks, 4)] == short[:4]
    with pytest.raises(ConfigurationError, match="name other data sets"):
        with_rows(made, [task for task in tasks if task.task_id not in short], 4)


def test_rows_of_a_step_do_not_depend_on_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run has not found out yet which conversations give none."""
    monkeypatch.setattr(rows, "DUEL_REPLY_TOKENS", 150)
    monkeypatch.setattr(rows, "MOST_TRIED", 3)
    chats = [
        [
            {"role": "user", "content": f"move {n}"},
            {"role": "assistant", "content": f"{n} " * (200 if n % 3 else 9)},
        ]
        for n in range(40)
    ]
    folder = write_rows(tmp_path / "data", chats)
    _, made = taught(folder)
    known = [made.some(4, 9, seed) for seed in "abcdefgh" for _ in range(2)][1::2]
    fresh = []
    for seed in "abcdefgh":
        _, resumed = taught(folder)
        fresh.append(resumed.some(4, 9, seed))
    assert known == fresh
    assert any(fresh)
