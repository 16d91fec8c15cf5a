"""Pace: the run ends by steps or by time, and time counts over restarts."""

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.config.settings import OptimizerSettings
from miner.distributed.ranks import Ranks
from miner.publishing.deadline import Deadline
from miner.training.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(pace: Pace, clock: Clock, seconds: float, tmp_path) -> bool:
    """Run one step of `seconds`; whether the run was asked to stop."""
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    pace.on_step_begin(args, state, control)
    clock.now += seconds
    pace.on_step_end(args, state, control)
    return control.should_training_stop


def test_the_fraction_is_the_further_of_steps_and_time():
    clock = Clock()
    pace = Pace(max_steps=10, seconds=100, clock=clock)
    assert pace.fraction(2) == pytest.approx(0.2)
    clock.now += 50
    assert pace.fraction(2) == pytest.approx(0.5)
    assert pace.fraction(10) == 1.0


def test_it_stops_before_a_step_that_would_not_fit(tmp_path):
    clock = Clock()
    pace = Pace(max_steps=100, seconds=10, clock=clock)
    assert not step(pace, clock, 4, tmp_path)
    assert step(pace, clock, 4, tmp_path)  # 8 of 10 s used, the next would take 4


def test_time_of_earlier_processes_counts(tmp_path):
    clock = Clock()
    pace = Pace(max_steps=100, seconds=10, spent_before=8, clock=clock)
    assert pace.fraction(0) == pytest.approx(0.8)
    assert step(pace, clock, 2, tmp_path)


def test_the_kill_is_kept_ahead_of(tmp_path):
    clock = Clock()
    guesses = {"evaluation": 10.0, "publication": 5.0}
    deadline = Deadline(100, started_at=clock.now, margin=5, guesses=guesses, clock=clock)
    pace = Pace(max_steps=1000, deadline=deadline, clock=clock)
    assert not step(pace, clock, 20, tmp_path)  # 80 s of training fit before the reserve of 20
    assert pace.fraction(1) == pytest.approx(0.25)
    assert pace.room_for_evaluation()
    with pace.measured("evaluation"):
        clock.now += 20
    assert deadline.expected("evaluation") == pytest.approx(25)
    assert not pace.room_for_evaluation()
    assert step(pace, clock, 10, tmp_path)


def test_learning_rate_warms_up_and_falls_to_zero_by_time():
    clock = Clock()
    factor = Pace(max_steps=1000, seconds=100, clock=clock).learning_rate_factor(
        OptimizerSettings(warmup_steps=1, schedule="linear"), Ranks()
    )
    assert factor(0) == pytest.approx(0.5)
    clock.now += 75
    assert factor(5) == pytest.approx(0.25)
    clock.now += 100
    assert factor(6) == 0.0
