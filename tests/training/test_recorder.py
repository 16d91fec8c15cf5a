"""What a step leaves behind beside TRL's log."""

from types import SimpleNamespace

import pytest

from miner.reporting.records import GAP_ALARM, LOGPROB_GAP
from miner.reporting.run_folder import RunFolder
from miner.rollout import Group, GroupResult, RolloutStats
from miner.training.heart import Heart
from miner.training.pace import Pace
from miner.training.recorder import Recorder
from tests.builders import build_task, build_trajectory


@pytest.mark.parametrize(("gap", "alarmed"), [(GAP_ALARM / 2, False), (2 * GAP_ALARM, True)])
def test_the_logprob_gap_is_recorded_and_alarmed_when_it_is_wide(tmp_path, gap, alarmed):
    notes = []
    progress = SimpleNamespace(note=notes.append, update=lambda step, values: None)
    result = GroupResult(Group(build_task(), 1), (build_trajectory(),), varied=False)
    recorder = Recorder(
        tmp_path,
        progress,
        Pace(10),
        lambda: RolloutStats.of([result]),
        lambda: None,
        Heart(tmp_path),
    )
    state = SimpleNamespace(global_step=3, max_steps=10, is_world_process_zero=True)
    recorder.on_log(None, state, None, {"reward": 1.0, LOGPROB_GAP: gap})
    [record] = RunFolder(tmp_path).read().steps
    assert record.metrics[LOGPROB_GAP] == pytest.approx(gap)
    assert [f"differ by {gap:.3f}" in note for note in notes] == [True] * alarmed
