"""The exit statuses: distinct, documented, decided by the folder at the output path."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.outcome import Outcome, read_outcome, write_outcome
from entrypoint.reaper import Ended
from entrypoint.verdict import cause_of, decide, verify_output
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.output_path import PUBLICATION_FILE
from tests.entrypoint.plans import run_plan

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "exit-statuses.md"
BY_ITSELF = Ended(0, asked=None, overdue=False)
Writer = Callable[..., Path]


def test_document_lists_exactly_the_statuses() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| .+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [(str(s.value), s.label) for s in ExitStatus]


def test_statuses_stay_out_of_the_shells_and_the_engines_ranges() -> None:
    assert all(status < 125 for status in ExitStatus)


@pytest.mark.parametrize(
    ("ended", "outcome", "status"),
    [
        (BY_ITSELF, Outcome(ExitStatus.TRAINER, "x"), ExitStatus.TRAINER),
        (BY_ITSELF, None, ExitStatus.SUPERVISOR),
        (Ended(0, "SIGTERM", False), Outcome(ExitStatus.TRAINER, "x"), ExitStatus.STOPPED),
        (Ended(-9, None, True), None, ExitStatus.DEADLINE),
        (Ended(0, None, True), Outcome(ExitStatus.STALLED, "x"), ExitStatus.STALLED),
    ],
)
def test_cause(ended: Ended, outcome: Outcome | None, status: ExitStatus) -> None:
    assert cause_of(ended, outcome).status is status


def test_an_outcome_may_name_a_path_of_any_bytes(tmp_path: Path) -> None:
    write_outcome(tmp_path / "o.json", Outcome(ExitStatus.SUPERVISOR, "no \udcff.bin"))
    found = read_outcome(tmp_path / "o.json")
    assert found == Outcome(ExitStatus.SUPERVISOR, "no \\udcff.bin")


def test_outcome_survives_its_file_and_the_first_one_stays(tmp_path: Path) -> None:
    first = Outcome(ExitStatus.STALLED, "it hung")
    write_outcome(tmp_path / "o.json", first)
    write_outcome(tmp_path / "o.json", Outcome(ExitStatus.SUPERVISOR, "later"))
    assert read_outcome(tmp_path / "o.json") == first


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"status": "OK"}', '{"status": 3, "message": ""}']
)
def test_unreadable_outcomes_count_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "o.json").write_text(text)
    assert read_outcome(tmp_path / "o.json") is None


def test_nothing_at_the_output_path_keeps_the_cause(tmp_path: Path) -> None:
    end = decide(run_plan(tmp_path), BY_ITSELF, Outcome(ExitStatus.STALLED, "it hung"))
    assert end.status is ExitStatus.STALLED
    assert end.message.startswith("it hung; no verified model: ")


def test_sound_folder_is_success_without_time_to_load_it(
    tmp_path: Path, model_writer: Writer
) -> None:
    run = run_plan(tmp_path)
    model_writer(run.output_dir)
    end = decide(run, BY_ITSELF, Outcome(ExitStatus.STALLED, "it hung"))
    assert end.status is ExitStatus.OK
    assert "complete" in end.message
    assert "it hung" in end.message


@pytest.mark.parametrize("cause", [ExitStatus.REFUSED, ExitStatus.TRAINER])
@pytest.mark.parametrize("by_hand", [True, False])
def test_only_a_refusal_of_user_settings_is_not_excused_by_an_earlier_model(
    tmp_path: Path, model_writer: Writer, cause: ExitStatus, by_hand: bool
) -> None:
    run = run_plan(tmp_path, by_hand=by_hand)
    model_writer(run.output_dir)
    end = decide(run, BY_ITSELF, Outcome(cause, "it ended so"))
    excused = not by_hand or cause is not ExitStatus.REFUSED
    assert end.status is (ExitStatus.OK if excused else cause)
    assert "it ended so" in end.message
    assert ("holds an earlier model" in end.message) is not excused


def test_folder_whose_structure_is_sound_but_does_not_load_is_not_a_success(
    tmp_path: Path, model_writer: Writer
) -> None:
    run = run_plan(tmp_path, kill_at=time.time() + 600)
    model_writer(run.output_dir)  # one meaningless tensor
    end = decide(run, BY_ITSELF, None)
    assert end.status is ExitStatus.SUPERVISOR
    assert "no verified model" in end.message


@pytest.mark.parametrize(("step", "sound"), [(0, True), (20, False)])
def test_only_a_published_base_model_may_lack_a_chat_template(
    tmp_path: Path, model_writer: Writer, step: int, sound: bool
) -> None:
    folder = model_writer(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / PUBLICATION_FILE).write_text(json.dumps({"step": step}))
    if sound:
        assert verify_output(folder, 0.0).parameters == 512
    else:
        with pytest.raises(UnverifiedModelError, match="chat template"):
            verify_output(folder, 0.0)


def test_model_that_a_kill_left_aside_is_put_back(tmp_path: Path, model_writer: Writer) -> None:
    aside = model_writer(tmp_path / ".repo.previous")  # killed between the publisher's two renames
    record = {"step": 20, "score": 0.9, "episodes": 100}
    (aside / PUBLICATION_FILE).write_text(json.dumps(record))
    assert verify_output(tmp_path / "repo", 0.0).parameters == 512
    assert (tmp_path / "repo").is_dir()


def test_nothing_is_loaded_in_a_container_that_is_asked_to_stop(
    tmp_path: Path, model_writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_plan(tmp_path, kill_at=time.time() + 600)
    model_writer(run.output_dir)

    def verify(*_: object, **__: object) -> None:
        pytest.fail("the model was loaded")

    monkeypatch.setattr("entrypoint.verdict.fresh_process.verify", verify)
    end = decide(run, Ended(0, "SIGTERM", overdue=False), None)
    assert (end.status, "complete" in end.message) == (ExitStatus.OK, True)


@pytest.mark.parametrize("cut_off", [False, True], ids=["slow or killed", "SIGTERM"])
def test_a_check_that_does_not_end_leaves_the_structural_one(
    tmp_path: Path, model_writer: Writer, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    kill_at = time.time() + 600
    run = run_plan(tmp_path, started_at=0.0, kill_at=kill_at, served_dtype="bfloat16")
    model_writer(run.output_dir)
    before = signal.getsignal(signal.SIGTERM)

    def verify(folder: Path, *, timeout: float, dtype: str, **_: object) -> None:
        assert timeout <= 600
        assert dtype == "bfloat16"
        if cut_off:
            assert signal.getsignal(signal.SIGTERM) != before  # else it would end pytest
            os.kill(os.getpid(), signal.SIGTERM)
        raise PublishingError("killed: out of memory?")

    monkeypatch.setattr("entrypoint.verdict.fresh_process.verify", verify)
    cause = Outcome(ExitStatus.TRAINER, "x")
    assert decide(run, BY_ITSELF, cause).status is ExitStatus.OK
