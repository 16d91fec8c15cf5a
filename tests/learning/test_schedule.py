"""Schedule: the run ends by steps, by time or ahead of a kill, and time counts over restarts."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState

from miner.config.settings import OptimizerSettings
from miner.distributed.ranks import Ranks
from miner.learning.schedule import RECENT, SAFETY, Schedule, seconds_until
from tests.virtual_time import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def an_hour(clock: Clock, **options) -> Schedule:
    """One hour until the kill, 60 s of it margin, nothing measured or guessed yet."""
    return Schedule(10**6, **{"kill_in": 3600.0, "guesses": {}, "clock": clock} | options)


def end_step(schedule: Schedule) -> bool:
    """End a step; whether the run was asked to stop."""
    control = TrainerControl()
    schedule.on_step_end(None, TrainerState(), control)
    assert control.should_save == control.should_training_stop, "what was learned is kept"
    return control.should_training_stop


def step(schedule: Schedule, clock: Clock, seconds: float) -> bool:
    """Run the first step of a process; whether the run was asked to stop."""
    schedule.on_train_begin(None, TrainerState(), TrainerControl())
    clock.now += seconds
    return end_step(schedule)


def test_the_fraction_is_the_further_of_steps_and_time(clock):
    schedule = Schedule(max_steps=10, seconds=100, clock=clock)
    assert schedule.fraction(2) == pytest.approx(0.2)
    clock.now += 50
    assert schedule.fraction(2) == pytest.approx(0.5)
    assert schedule.fraction(10) == 1.0


def test_the_time_left_does_not_count_the_bases_evaluation(clock):
    schedule = Schedule(max_steps=10, clock=clock)
    assert schedule.seconds_left(0) is None
    clock.now += 200  # the base's evaluation, before the first step
    step(schedule, clock, 5)
    assert schedule.seconds_left(1) == pytest.approx(45)
    schedule = Schedule(max_steps=10, seconds=30, clock=clock)
    step(schedule, clock, 5)
    assert schedule.seconds_left(1) == pytest.approx(25)


def test_it_stops_before_a_step_that_would_not_fit(clock):
    schedule = Schedule(max_steps=100, seconds=10, clock=clock)
    assert not step(schedule, clock, 4)
    assert step(schedule, clock, 4)  # 8 of 10 s used, the next would take 4


def test_time_of_earlier_processes_counts(clock):
    schedule = Schedule(max_steps=100, seconds=10, spent_before=8, clock=clock)
    assert schedule.fraction(0) == pytest.approx(0.8)
    assert step(schedule, clock, 2)


def test_without_a_kill_only_steps_and_training_time_end_a_run(clock):
    schedule = Schedule(max_steps=1000, clock=clock)
    assert not step(schedule, clock, 10**6)
    assert schedule.room_for_evaluation(10**6)
    assert schedule.fraction(1) == 0.001
    assert not schedule.ends_by_kill


def test_the_kill_is_kept_ahead_of(clock):
    guesses = {"evaluation": 10.0, "publication": 5.0}
    schedule = an_hour(clock, kill_in=100, margin=5, guesses=guesses)
    assert not step(schedule, clock, 20)  # 80 s of training fit before the reserve of 20
    assert schedule.fraction(1) == pytest.approx(0.25)
    assert schedule.room_for_evaluation()
    with schedule.measured("evaluation"):
        clock.now += 20
    assert schedule.expected("evaluation") == pytest.approx(25)
    assert not schedule.room_for_evaluation()
    assert step(schedule, clock, 10)


def test_the_reserve_is_guessed_first_and_then_measured(clock):
    schedule = an_hour(clock, guesses={"evaluation": 200.0, "publication": 100.0})
    assert schedule.training_left() == 3600 - (60 + 200 + 100)
    schedule.observe("evaluation", 80)
    schedule.observe("publication", 40)
    assert schedule.training_left() == 3600 - (60 + SAFETY * 80 + SAFETY * 40)
    schedule.observe("publication", 20)
    assert schedule.expected("publication") == SAFETY * 40  # the slowest of late
    schedule.observe("evaluation", 40)
    assert schedule.expected("evaluation") == SAFETY * 40  # the latest: replies become shorter
    clock.now += 4000
    assert schedule.training_left() == 0


def test_lost_servers_are_waited_for_in_the_last_evaluation_too(clock):
    schedule = an_hour(clock, guesses={"evaluation": 300.0, "publication": 100.0})
    assert schedule.patience() == schedule.training_left() == 3600 - 60 - 400
    clock.now += 3600 - 60 - 400
    assert schedule.patience() == 300
    clock.now += 301
    assert schedule.patience() == 0


def test_a_slow_first_step_is_forgotten(clock):
    schedule = an_hour(clock)
    schedule.observe("step", 500)
    for _ in range(RECENT["step"]):
        schedule.observe("step", 8)
    assert schedule.expected("step") == SAFETY * 8


def test_it_stops_when_the_next_step_does_not_fit_before_the_kill(clock):
    schedule = an_hour(clock)
    assert not step(schedule, clock, 80)
    clock.now += 3600 - 80 - 60 - 101
    assert not step(schedule, clock, 0)
    clock.now += 1
    assert step(schedule, clock, 0)


def test_no_room_for_an_evaluation_that_would_push_out_the_last_one(clock):
    schedule = an_hour(clock)
    schedule.observe("step", 8)
    schedule.observe("evaluation", 80)
    schedule.observe("publication", 40)
    one_evaluation = SAFETY * (80 + 40)
    clock.now += 3600 - 60 - 2 * one_evaluation - SAFETY * 8 - 1
    assert schedule.room_for_evaluation()
    assert not schedule.room_for_evaluation(before_last=SAFETY * 8 + 1)
    clock.now += 1
    assert not schedule.room_for_evaluation()
    assert not step(schedule, clock, 0)


def test_too_little_time_stops_at_once(clock):
    schedule = an_hour(clock, kill_in=0.0)
    control = TrainerControl()
    schedule.on_train_begin(None, TrainerState(), control)
    assert control.should_training_stop
    assert step(schedule, clock, 0)
    assert schedule.fraction(0) == 1.0


def test_the_fraction_runs_over_the_time_before_the_reserve(clock):
    schedule = an_hour(clock, kill_in=3060.0)
    assert schedule.fraction(0) == 0.0
    for seconds, fraction in ((1500, 0.5), (1500, 1.0), (1500, 1.0)):
        clock.now += seconds
        assert schedule.fraction(0) == pytest.approx(fraction)


def test_the_fraction_does_not_fall_when_the_last_evaluation_turns_out_shorter(clock):
    schedule = an_hour(clock, guesses={"evaluation": 1540.0})
    clock.now += 1000
    assert schedule.fraction(0) == pytest.approx(0.5)
    schedule.observe("evaluation", 40)
    assert schedule.fraction(0) == pytest.approx(0.5)
    clock.now += 1490
    assert schedule.fraction(0) == pytest.approx(2490 / 3490)


events = st.lists(
    st.tuples(st.sampled_from(["step", "evaluation", "publication"]), st.floats(0.1, 900.0)),
    max_size=40,
)


@given(events)
def test_with_any_measurements_the_fraction_rises_and_the_kill_is_never_met(measured):
    clock = Clock()
    schedule = an_hour(clock)
    kill, before = clock.now + 3600.0, 0.0
    for phase, seconds in measured:
        if step(schedule, clock, 0):
            break
        clock.now += min(seconds, schedule.training_left())
        schedule.observe(phase, seconds)
        fraction = schedule.fraction(0)
        assert before <= fraction <= 1.0
        assert kill - clock.now >= 60.0
        before = fraction


def test_a_kill_at_a_unix_time_is_as_far_away_on_the_monotonic_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(time=lambda: 1_700_000_000.0)
    monkeypatch.setattr("miner.learning.schedule.time", now)
    kills = 1_700_000_900.0, 1_699_999_000.0, None  # the second is past
    assert [seconds_until(kill) for kill in kills] == [900.0, 0.0, math.inf]


def test_idle_time_does_not_count_in_the_estimate_of_a_step(clock):
    idle = 0.0
    schedule = an_hour(clock, kill_in=1000, seconds=1000, margin=0, idle=lambda: idle)
    step(schedule, clock, 10)
    schedule.on_train_begin(None, TrainerState(), TrainerControl())
    clock.now += 510
    idle += 500
    stopped = end_step(schedule)
    with schedule.measured("evaluation"):
        clock.now += 130
        idle += 100
    assert not stopped
    assert schedule.expected("step") == pytest.approx(SAFETY * 10)
    assert schedule.expected("evaluation") == pytest.approx(SAFETY * 30)
    assert schedule.elapsed == pytest.approx(650)  # but it is time spent


def test_best_weights_that_are_kept_are_no_steps_time(clock):
    schedule = an_hour(clock)
    step(schedule, clock, 10)
    with schedule.between_steps("keeping"):
        clock.now += 50
    clock.now += 10
    end_step(schedule)
    assert schedule.expected("step") == pytest.approx(SAFETY * 10)
    assert schedule.taken_phases() == {"keeping": 50}
    assert schedule.elapsed == pytest.approx(70)


def test_what_comes_between_two_steps_is_planned_with_the_next(clock):
    schedule = an_hour(clock)
    for _ in range(2):
        clock.now += 10  # the step
        end_step(schedule)
        clock.now += 60  # its checkpoint
        schedule.on_step_begin(None, TrainerState(), TrainerControl())
    assert schedule.expected("step") == pytest.approx(SAFETY * 70)


def test_an_evaluation_is_no_part_of_a_step(clock):
    """Both have their place before the kill: counted twice, the last steps would be given away."""
    schedule = an_hour(clock)
    schedule.on_train_begin(None, TrainerState(), TrainerControl())
    clock.now += 10  # the step
    with schedule.measured("evaluation"):
        clock.now += 200
    end_step(schedule)
    assert schedule.expected("step") == pytest.approx(SAFETY * 10)
    assert schedule.expected("evaluation") == pytest.approx(SAFETY * 200)


def test_a_resumed_run_is_where_it_was_before_the_kill(clock):
    schedule = an_hour(clock, kill_in=560, spent_before=500)
    assert schedule.fraction(0) == pytest.approx(0.5)


def test_what_is_left_is_the_nearer_of_training_time_and_kill(clock):
    assert Schedule(10, clock=clock).training_left() == math.inf
    assert Schedule(10, 50, spent_before=20, clock=clock).training_left() == pytest.approx(30)
    assert an_hour(clock, seconds=50, kill_in=80).training_left() == pytest.approx(20)
    schedule = Schedule(10, 50, clock=clock)
    clock.now += 60
    assert schedule.training_left() == 0.0


def test_learning_rate_warms_up_and_falls_to_zero_by_time(clock):
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
