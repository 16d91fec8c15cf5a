"""Parts of a run: guided episodes, targets at its beginning, teachers while the engine sleeps."""

from typing import Any

import pytest

from miner.config.settings import Settings
from miner.inference.vllm.colocated_engine import ColocatedEngine
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.learning.trainer import EpisodeTrainer
from miner.reporting.records import TARGET_KL
from miner.reporting.run_folder import RunFolder
from miner.rewards import all_moves
from miner.rewards.all_moves import AllMoves
from miner.training import run as training
from tests.training.generation import ColocatedDouble
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


def test_an_engine_sleeps_while_the_model_learns_from_teachers(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is played in these steps: weights travel when games are played again."""
    doubles: list[ColocatedDouble] = []
    learned: list[tuple[int, set[str], int]] = []

    def open_engine(settings: Settings, learner: Any, *others: Any) -> ColocatedEngine:
        double: Any = ColocatedDouble(learner.model)
        doubles.append(double)
        rules = learner.reply_rules(settings.rollout.episode_limit)
        sampler = VllmColocatedSampler(double.llm.llm_engine, rules, make_params=dict)
        return ColocatedEngine(double, sampler)

    compute = EpisodeTrainer.compute_loss

    def compute_loss(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        [double] = doubles
        assert trainer.use_vllm, "the loss is corrected"
        learned.append((trainer.state.global_step, {*double.awake}, double.log.count("sync")))
        return compute(trainer, *args, **kwargs)

    monkeypatch.setattr(training, "open_engine", open_engine)
    monkeypatch.setattr(EpisodeTrainer, "compute_loss", compute_loss)
    work.train(
        *("environment.channel=duel", "environment.games=['leduc_poker']"),
        *("demonstrations.share=0.5", "demonstrations.rows=4", "rollout.engine=vllm_colocated"),
        *("optimizer.max_steps=4", "evaluation.every_steps=4"),
    )
    base = 2  # the look at its weights and the base's evaluation, before any step
    assert learned == [
        (0, set(), base),
        (1, set(), base + 1),  # woken once beside the optimizer's states
        (2, set(), base + 2),
        (3, set(), base + 3),
    ]
    phases = [record.phases for record in RunFolder(work.run_dir).read().steps]
    assert ["weights" in spent for spent in phases] == [False, False, True, True]
