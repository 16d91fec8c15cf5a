"""Guided episodes in a run: how many there are, as the learning rate falls."""

from miner.rewards.all_moves import AllMoves
from tests.training.in_process import Work


def test_their_share_is_constant_and_falls_with_the_learning_rate(work: Work, monkeypatch) -> None:
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
