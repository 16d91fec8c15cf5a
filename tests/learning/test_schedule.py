"""Schedule: the run ends by steps or by time, and time counts over restarts."""

import math

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.config.settings import OptimizerSettings
from miner.distributed.ranks import Ranks
from miner.learning.schedule import Schedule
from miner.publishing.deadline import Deadline
from tests.virtual_time import Clock


def step(schedule: Schedule, clock: Clock, seconds: float, tmp_path) -> bool:
    """Run one step of `seconds`; whether the run was asked to stop."""
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    schedule.on_train_begin(args, state, control)
    clock.now += seconds
    schedule.on_step_end(args, state, control)
    assert control.should_save == control.should_training_stop, "what was learned is kept"
    return control.should_training_stop


def test_the_fraction_is_the_further_of_steps_and_time():
    clock = Clock()
    schedule = Schedule(max_steps=10, seconds=100, clock=clock)
    assert schedule.fraction(2) == pytest.approx(0.2)
    clock.now += 50
    assert schedule.fraction(2) == pytest.approx(0.5)
    assert schedule.fraction(10) == 1.0


def test_the_time_left_does_not_count_the_bases_evaluation(tmp_path):
    clock = Clock()
    schedule = Schedule(max_steps=10, clock=clock)
    assert schedule.seconds_left(0) is None
    clock.now += 200  # the base's evaluation, before the first step
    step(schedule, clock, 5, tmp_path)
    assert schedule.seconds_left(1) == pytest.approx(45)
    schedule = Schedule(max_steps=10, seconds=30, clock=clock)
    step(schedule, clock, 5, tmp_path)
    assert schedule.seconds_left(1) == pytest.approx(25)


def test_it_stops_before_a_step_that_would_not_fit(tmp_path):
    clock = Clock()
    schedule = Schedule(max_steps=100, seconds=10, clock=clock)
    assert not step(schedule, clock, 4, tmp_path)
    assert step(schedule, clock, 4, tmp_path)  # 8 of 10 s used, the next would take 4


def test_time_of_earlier_processes_counts(tmp_path):
    clock = Clock()
    schedule = Schedule(max_steps=100, seconds=10, spent_before=8, clock=clock)
    assert schedule.fraction(0) == pytest.approx(0.8)
    assert step(schedule, clock, 2, tmp_path)


def test_the_kill_is_kept_ahead_of(tmp_path):
    clock = Clock()
    guesses = {"evaluation": 10.0, "publication": 5.0}
    deadline = Deadline(100, started_at=clock.now, margin=5, guesses=guesses, clock=clock)
    schedule = Schedule(max_steps=1000, deadline=deadline, clock=clock)
    assert not step(schedule, clock, 20, tmp_path)  # 80 s of training fit before the reserve of 20
    assert schedule.fraction(1) == pytest.approx(0.25)
    assert schedule.room_for_evaluation()
    with schedule.measured("evaluation"):
        clock.now += 20
    assert deadline.expected("evaluation") == pytest.approx(25)
    assert not schedule.room_for_evaluation()
    assert step(schedule, clock, 10, tmp_path)


def test_idle_time_does_not_count_in_the_estimate_of_a_step(tmp_path):
    clock, idle = Clock(), 0.0
    deadline = Deadline(1000, started_at=clock.now, margin=0, guesses={}, clock=clock)
    schedule = Schedule(100, 1000, deadline, idle=lambda: idle, clock=clock)
    step(schedule, clock, 10, tmp_path)
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    schedule.on_train_begin(args, state, control)
    clock.now += 510
    idle += 500
    schedule.on_step_end(args, state, control)
    with schedule.measured("evaluation"):
        clock.now += 130
        idle += 100
    assert not control.should_training_stop
    assert deadline.expected("step") == pytest.approx(1.25 * 10)
    assert deadline.expected("evaluation") == pytest.approx(1.25 * 30)
    assert schedule.elapsed == pytest.approx(650)  # but it is time spent


def test_best_weights_that_are_kept_are_no_steps_time(tmp_path):
    clock = Clock()
    deadline = Deadline(1000, started_at=clock.now, margin=0, guesses={}, clock=clock)
    schedule = Schedule(100, deadline=deadline, clock=clock)
    step(schedule, clock, 10, tmp_path)
    with schedule.between_steps("keeping"):
        clock.now += 50
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    clock.now += 10
    schedule.on_step_end(args, state, control)
    assert deadline.expected("step") == pytest.approx(1.25 * 10)
    assert schedule.taken_phases() == {"keeping": 50}
    assert schedule.elapsed == pytest.approx(70)


def test_what_comes_between_two_steps_is_planned_with_the_next(tmp_path):
    clock = Clock()
    deadline = Deadline(1000, started_at=clock.now, margin=0, guesses={}, clock=clock)
    schedule = Schedule(100, deadline=deadline, clock=clock)
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    for _ in range(2):
        clock.now += 10  # the step
        schedule.on_step_end(args, state, control)
        clock.now += 60  # its checkpoint
        schedule.on_step_begin(args, state, control)
    assert deadline.expected("step") == pytest.approx(1.25 * 70)


def test_an_evaluation_is_no_part_of_a_step(tmp_path):
    """Both have their place before the kill: counted twice, the last steps would be given away."""
    clock = Clock()
    deadline = Deadline(1000, started_at=clock.now, margin=0, guesses={}, clock=clock)
    schedule = Schedule(100, deadline=deadline, clock=clock)
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(), TrainerControl()
    schedule.on_train_begin(args, state, control)
    clock.now += 10  # the step
    with schedule.measured("evaluation"):
        clock.now += 200
    schedule.on_step_end(args, state, control)
    assert deadline.expected("step") == pytest.approx(1.25 * 10)
    assert deadline.expected("evaluation") == pytest.approx(1.25 * 200)


def test_a_resumed_run_is_where_it_was_before_the_kill():
    clock = Clock()
    deadline = Deadline(1000, started_at=clock.now - 500, margin=0, guesses={}, clock=clock)
    schedule = Schedule(100, deadline=deadline, spent_before=500, clock=clock)
    assert schedule.fraction(0) == pytest.approx(0.5)


def test_what_is_left_is_the_nearer_of_training_time_and_kill():
    clock = Clock()
    assert Schedule(10, clock=clock).training_left() == math.inf
    assert Schedule(10, 50, spent_before=20, clock=clock).training_left() == pytest.approx(30)
    deadline = Deadline(100, started_at=clock.now, margin=80, guesses={}, clock=clock)
    assert Schedule(10, 50, deadline, clock=clock).training_left() == pytest.approx(20)
    schedule = Schedule(10, 50, clock=clock)
    clock.now += 60
    assert schedule.training_left() == 0.0


def test_learning_rate_warms_up_and_falls_to_zero_by_time():
    clock = Clock()
    factor = Schedule(max_steps=1000, seconds=100, clock=clock).learning_rate_factor(
        OptimizerSettings(warmup_steps=1), Ranks()
    )
    assert factor(0) == pytest.approx(0.5)
    clock.now += 75
    assert factor(5) == pytest.approx(0.25)
    clock.now += 100
    assert factor(6) == 0.0


def test_learning_rate_is_constant_until_the_last_share_of_the_run():
    factor = Schedule(max_steps=100).learning_rate_factor(
        OptimizerSettings(warmup_steps=0, decay_share=0.4), Ranks()
    )
    assert [factor(step) for step in (0, 50, 60, 80, 100)] == pytest.approx([1, 1, 1, 0.5, 0])
