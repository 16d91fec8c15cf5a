"""Records survive kills, restarts and odd numbers."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.config.errors import ConfigurationError
from miner.reporting.records import RecordFile, StepRecord, latest_per_step
from tests.reporting.made import step


@pytest.fixture
def file(tmp_path: Path) -> RecordFile[StepRecord]:
    return RecordFile(tmp_path / "metrics.jsonl", StepRecord)


def test_what_is_appended_is_read_back(file: RecordFile[StepRecord]) -> None:
    written = [step(n, drift={"clean": n}, metrics={"loss": 0.1 * n}) for n in range(5)]
    for record in written:
        file.append(record)
    assert file.read() == (written, 0)


@given(st.data())
def test_a_file_cut_anywhere_loses_only_the_torn_record(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "metrics.jsonl"
    file = RecordFile(path, StepRecord)
    for number in range(3):
        file.append(step(number))
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    before = whole[:cut].count(b"\n")
    ends_on_a_record = whole[cut : cut + 1] == b"\n"
    file.append(step(9))
    records, torn = file.read()
    survived = before + ends_on_a_record
    assert [record.step for record in records] == [*range(survived), 9]
    assert torn == (cut > 0 and whole[cut - 1 : cut] != b"\n" and not ends_on_a_record)


def test_not_a_number_survives_in_plain_json(file: RecordFile[StepRecord]) -> None:
    file.append(step(1, seconds=math.nan, metrics={"loss": math.inf}))
    json.loads(file.path.read_text(), parse_constant=pytest.fail)
    (record,), _ = file.read()
    assert math.isnan(record.seconds)
    assert record.metrics["loss"] == math.inf


def test_a_whole_line_of_something_else_is_an_error_that_names_it(
    file: RecordFile[StepRecord],
) -> None:
    file.append(step(1))
    with file.path.open("a") as sink:
        sink.write('{"step": "many"}\n')
    with pytest.raises(ConfigurationError, match=r"metrics.jsonl line 2 is no StepRecord: step"):
        file.read()


def test_fields_of_a_newer_version_are_ignored(file: RecordFile[StepRecord]) -> None:
    file.path.write_text('{"step": 3, "time": 0, "reward": 1, "brightness": 7}\n')
    (record,), torn = file.read()
    assert (record.step, torn) == (3, 0)


def test_steps_after_the_checkpoint_that_a_run_continues_from_are_no_part_of_it() -> None:
    records = [step(1), step(2, reward=0.2), step(3), step(2, reward=0.9)]
    assert [(r.step, r.reward) for r in latest_per_step(records)] == [(1, 0.1), (2, 0.9)]
