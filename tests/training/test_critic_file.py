"""The critic's counts outlive the process that has counted."""

import numpy as np
import pytest

from miner.config.run_files import CRITIC_FILE
from miner.rewards.goofspiel_critic import GoofspielCritic, Habits
from miner.training.critic_file import CriticFile
from tests.training.in_process import Work

BID = (0, (0.9, 0.1))


def counted() -> Habits:
    habits = Habits()
    habits.add([BID] * 40)
    return habits


def test_a_resumed_critic_knows_the_policy(tmp_path):
    before, after = counted(), GoofspielCritic(0.05).habits
    table = after.table(8)
    CriticFile(before, tmp_path, leads=False).on_step_end(None, None, None)
    CriticFile(after, tmp_path, leads=True).read()
    assert (after.table(8) == table).all(), "nobody has written yet"
    CriticFile(before, tmp_path, leads=True).on_step_end(None, None, None)
    CriticFile(after, tmp_path, leads=False).read()
    assert after.table(8) == pytest.approx(before.table(8))
    assert abs(after.table(8) - table).max() > 0.1


@pytest.mark.parametrize("text", ["", "[[1.0, 2.0]]", "{}", '["a"]'])
def test_counts_that_cannot_be_read_are_none(tmp_path, text):
    (tmp_path / CRITIC_FILE).write_text(text)
    habits = Habits()
    CriticFile(habits, tmp_path, leads=True).read()
    assert (habits.counts == Habits().counts).all()


def test_a_full_disk_ends_no_run(tmp_path):
    CriticFile(counted(), tmp_path / "gone", leads=True).on_step_end(None, None, None)


def test_a_run_that_resumes_reads_them_and_another_does_not(work: Work, monkeypatch):
    put = []
    monkeypatch.setattr(Habits, "put", lambda habits, counts: put.append(counts))
    given = ("reward.credit=all_moves", "rollout.guided=1.0", "checkpoint.every_steps=1")
    work.run_dir.mkdir()
    (work.run_dir / CRITIC_FILE).write_text(str(Habits().counts.tolist()))
    work.train(*given, "optimizer.max_steps=1")
    assert put == []
    work.train(*given, "optimizer.max_steps=2")
    assert len(put) == 1
    assert np.abs(put[0] - Habits().counts).max() > 0.01
