"""Records of a step beside TRL's log."""

from types import SimpleNamespace

import pytest

from miner.config.heartbeat import HeartbeatWriter
from miner.learning.schedule import Schedule
from miner.reporting.records import COMPUTED_TOKENS, LEFT_OUT, LOGPROB_GAP, REGRET, ROW_TOKENS, ROWS
from miner.reporting.run_folder import RunFolder
from miner.rollout.groups import Group, GroupResult
from miner.rollout.stats import RolloutStats
from miner.training import recorder as recorder_module
from miner.training.recorder import Recorder
from tests.builders import build_task, build_trajectory


def make_recorder(folder, progress, schedule=None):
    result = GroupResult(Group(build_task(), 1), (build_trajectory(),))
    return Recorder(
        folder,
        progress,
        schedule or Schedule(10),
        SimpleNamespace(latest=RolloutStats.of([result], lambda _: 0.75), regret=0.02),
        SimpleNamespace(applied_rate=None),
        HeartbeatWriter(folder),
    )


def record(recorder, step, **logs):
    state = SimpleNamespace(global_step=step, max_steps=10, is_world_process_zero=True)
    recorder.on_log(None, state, None, {"reward": 1.0, **logs})


def test_a_step_shows_what_was_computed_to_learn_and_one_without_any_has_a_line(tmp_path):
    notes, shown = [], []
    progress = SimpleNamespace(note=notes.append, update=lambda record: shown.append(record.work))
    recorder = make_recorder(tmp_path, progress)
    counts = {ROWS: 8, ROW_TOKENS: 3000}
    record(recorder, 1, **counts, **{LEFT_OUT: 2, COMPUTED_TOKENS: 1000})
    record(recorder, 2, **counts, **{LEFT_OUT: 8, COMPUTED_TOKENS: 0})
    record(recorder, 3)
    assert shown == ["6/8 rows 1,000/3,000 tokens", "0/8 rows 0/3,000 tokens", "-"]
    (note,) = notes
    assert note.startswith("step 2: nothing to learn")
    assert RunFolder(tmp_path).read().steps[0].metrics[LEFT_OUT] == 2


def test_phases_of_a_step_are_its_own(tmp_path):
    schedule = Schedule(10)
    progress = SimpleNamespace(note=None, update=lambda record: None)
    recorder = make_recorder(tmp_path, progress, schedule)
    schedule.spend("evaluation", 300.0)  # of the base
    recorder.on_train_begin(None, None, None)
    schedule.spend("playing", 7.0)
    record(recorder, 1)
    [step] = RunFolder(tmp_path).read().steps
    assert {**step.phases, "learning": 0.0} == {"learning": 0.0, "playing": 7.0}


def test_what_comes_between_steps_is_no_steps_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(
        monotonic=lambda: now[0], time=lambda: now[0]))  # fmt: skip
    schedule = Schedule(10, clock=lambda: now[0])
    recorder = make_recorder(tmp_path, SimpleNamespace(update=lambda record: None), schedule)
    recorder.on_step_begin(None, SimpleNamespace(global_step=0), None)
    schedule.spend("playing", 3.0)
    now[0] = 4.0
    with schedule.measured("evaluation"):
        now[0] += 96.0
    record(recorder, 1)
    [step] = RunFolder(tmp_path).read().steps
    assert (step.seconds, step.phases["learning"], step.phases["evaluation"]) == (4.0, 1.0, 96.0)


@pytest.mark.parametrize(
    ("gaps", "alarmed"),
    [
        ([0.05, 0.09], []),
        ([0.2], ["0.200"]),
        ([1e-6, 0.004], []),
        ([1e-6, 0.006, 0.009], ["0.006", "0.009"]),  # weights that do not all arrive
        ([0.006, 0.05, 0.07], ["0.070"]),
    ],
)
def test_the_logprob_gap_is_recorded_and_alarmed_when_it_is_wide_or_grows(tmp_path, gaps, alarmed):
    notes = []
    progress = SimpleNamespace(note=notes.append, update=lambda record: None)
    recorder = make_recorder(tmp_path, progress)
    for step, gap in enumerate(gaps, start=1):
        record(recorder, step, **{LOGPROB_GAP: gap})
    records = RunFolder(tmp_path).read().steps
    assert {(r.reward, r.score) for r in records} == {(0.75, 1.0)}, "not TRL's"
    assert [r.metrics[LOGPROB_GAP] for r in records] == pytest.approx(gaps)
    assert {r.metrics[REGRET] for r in records} == {0.02}
    assert len(notes) == len(alarmed)
    assert all(f"differ by {gap} on average" in n for gap, n in zip(alarmed, notes, strict=True))
