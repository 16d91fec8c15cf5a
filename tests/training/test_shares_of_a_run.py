"""Parts of a run: guided episodes, as the learning rate falls, and targets at its beginning."""

import pytest

from miner.reporting.records import TARGET_KL
from miner.reporting.run_folder import RunFolder
from miner.rewards import all_moves
from miner.rewards.all_moves import AllMoves
from tests.training.in_process import Work


def test_guided_episodes_are_a_constant_share_that_falls_with_the_learning_rate(
    work: Work, monkeypatch
) -> None:
    shares: list[float] = []
    guide = AllMoves.guide

    def watched(credit, share):
        of = guide(credit, share)

        def begun(task):
            shares.append(share())
            return of(task)

        return begun

    monkeypatch.setattr(AllMoves, "guide", watched)
    work.train(
        "reward.credit=all_moves",
        "rollout.guided=0.8",
        "rollout.groups_per_step=2",
        "rollout.group_size=1",
        "optimizer.max_steps=4",
        "optimizer.decay_share=0.5",
    )
    assert shares == [0.8] * 6 + [0.4] * 2


@pytest.mark.parametrize(("near", "learned"), [(1e9, 2), (0.0, 4)])
def test_targets_are_learned_in_the_first_part_and_until_they_are_near(
    work: Work, monkeypatch, near: float, learned: int
) -> None:
    monkeypatch.setattr(all_moves, "NEAR", near)
    work.train(
        "reward.credit=all_moves",
        "reward.targets=0.5",
        "rollout.groups_per_step=2",
        "rollout.group_size=1",
        "optimizer.max_steps=4",
    )
    steps = RunFolder(work.run_dir).read().steps
    assert [TARGET_KL in record.metrics for record in steps] == [
        step < learned for step in range(4)
    ]


def test_the_learning_rate_rises_over_its_warm_up_and_falls_over_its_share(work: Work) -> None:
    work.train(
        *("optimizer.max_steps=4", "optimizer.warmup_steps=1", "optimizer.decay_share=0.5"),
        *("rollout.groups_per_step=1", "rollout.group_size=2"),
    )
    rates = [step.metrics["learning_rate"] for step in RunFolder(work.run_dir).read().steps]
    assert [rate / rates[1] for rate in rates] == pytest.approx([0.5, 1, 1, 0.5])
