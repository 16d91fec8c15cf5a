"""What a step leaves behind beside TRL's log."""

from types import SimpleNamespace

import pytest

from miner.config.heartbeat import HeartbeatWriter
from miner.reporting.records import LOGPROB_GAP, REGRET
from miner.reporting.run_folder import RunFolder
from miner.rollout.groups import Group, GroupResult
from miner.rollout.stats import RolloutStats
from miner.training.recorder import Recorder
from miner.training.schedule import Schedule
from tests.builders import build_task, build_trajectory


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
    progress = SimpleNamespace(note=notes.append, update=lambda step, **values: None)
    result = GroupResult(Group(build_task(), 1), (build_trajectory(),))
    recorder = Recorder(
        tmp_path,
        progress,
        Schedule(10),
        SimpleNamespace(latest=RolloutStats.of([result]), regret=0.02),
        SimpleNamespace(applied_rate=None),
        HeartbeatWriter(tmp_path),
    )
    for step, gap in enumerate(gaps, start=1):
        state = SimpleNamespace(global_step=step, max_steps=10, is_world_process_zero=True)
        recorder.on_log(None, state, None, {"reward": 1.0, LOGPROB_GAP: gap})
    records = RunFolder(tmp_path).read().steps
    assert [r.metrics[LOGPROB_GAP] for r in records] == pytest.approx(gaps)
    assert {r.metrics[REGRET] for r in records} == {0.02}
    assert len(notes) == len(alarmed)
    assert all(f"differ by {gap} on average" in n for gap, n in zip(alarmed, notes, strict=True))
