"""The time plan, with a clock that only the test moves."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.publishing.deadline import RECENT, SAFETY, Deadline
from tests.virtual_time import Clock

NO_GUESS = {"step": 0.0, "evaluation": 0.0, "publication": 0.0}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def an_hour(clock: Clock, **options: object) -> Deadline:
    """One hour from now, 60 s of it margin, nothing measured or guessed yet."""
    settings = {"started_at": clock.now, "guesses": NO_GUESS, "clock": clock} | options
    return Deadline(3600.0, **settings)  # type: ignore[arg-type]


def test_time_runs_from_the_start_of_the_container(clock: Clock) -> None:
    deadline = an_hour(clock, started_at=clock.now - 600)
    assert deadline.remaining() == 3000
    clock.now += 4000
    assert deadline.remaining() == 0


def test_reserve_is_guessed_first_and_then_measured(clock: Clock) -> None:
    guesses = {"step": 0.0, "evaluation": 200.0, "publication": 100.0}
    deadline = an_hour(clock, guesses=guesses)
    assert deadline.reserve() == 60 + 200 + 100
    deadline.observe("evaluation", 80)
    deadline.observe("publication", 40)
    assert deadline.reserve() == 60 + SAFETY * 80 + SAFETY * 40
    deadline.observe("publication", 20)
    assert deadline.expected("publication") == SAFETY * 40  # the slowest of late
    deadline.observe("evaluation", 40)
    assert deadline.expected("evaluation") == SAFETY * 40  # the latest: replies become shorter


def test_a_slow_first_step_is_forgotten(clock: Clock) -> None:
    deadline = an_hour(clock)
    deadline.observe("step", 500)
    for _ in range(RECENT["step"]):
        deadline.observe("step", 8)
    assert deadline.expected("step") == SAFETY * 8


def test_stops_when_the_next_step_does_not_fit(clock: Clock) -> None:
    deadline = an_hour(clock)
    deadline.observe("step", 80)
    clock.now += 3600 - 60 - 101
    assert not deadline.should_stop()
    clock.now += 1
    assert deadline.should_stop()


def test_no_room_for_an_evaluation_that_would_push_out_the_last_one(clock: Clock) -> None:
    deadline = an_hour(clock)
    deadline.observe("step", 8)
    deadline.observe("evaluation", 80)
    deadline.observe("publication", 40)
    one_evaluation = SAFETY * (80 + 40)
    clock.now += 3600 - 60 - 2 * one_evaluation - SAFETY * 8 - 1
    assert deadline.room_for_evaluation()
    clock.now += 1
    assert not deadline.room_for_evaluation()
    assert not deadline.should_stop()


def test_too_little_time_stops_at_once(clock: Clock) -> None:
    deadline = Deadline(0.0, started_at=clock.now, clock=clock)
    deadline.begin_training()
    assert deadline.should_stop()
    assert deadline.fraction_used() == 1.0


def test_fraction_runs_over_the_training_window(clock: Clock) -> None:
    deadline = an_hour(clock)
    assert deadline.fraction_used() == 0.0
    clock.now += 540  # loading
    assert deadline.fraction_used() == 0.0
    deadline.begin_training()
    assert deadline.fraction_used() == 0.0
    clock.now += 1500
    assert deadline.fraction_used() == pytest.approx(0.5)
    clock.now += 1500
    assert deadline.fraction_used() == 1.0
    clock.now += 1500
    assert deadline.fraction_used() == 1.0


def test_fraction_counts_what_earlier_processes_have_trained(clock: Clock) -> None:
    deadline = an_hour(clock, started_at=clock.now - 2000.0)
    deadline.begin_training(1540.0)
    assert deadline.fraction_used() == pytest.approx(0.5)


def test_fraction_does_not_fall_when_the_last_evaluation_turns_out_shorter(clock: Clock) -> None:
    deadline = an_hour(clock, guesses=NO_GUESS | {"evaluation": 1540.0})
    deadline.begin_training()
    clock.now += 1000
    assert deadline.fraction_used() == pytest.approx(0.5)
    deadline.observe("evaluation", 40)
    assert deadline.fraction_used() == pytest.approx(0.5)
    clock.now += 1490
    assert deadline.fraction_used() == pytest.approx(2490 / 3490)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_nonsense_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite seconds"):
        Deadline(seconds, started_at=0.0)


events = st.lists(
    st.tuples(st.sampled_from(["step", "evaluation", "publication"]), st.floats(0.1, 900.0)),
    max_size=40,
)


@given(events)
def test_with_any_measurements_the_fraction_rises_and_the_kill_is_never_met(
    measured: list[tuple[str, float]],
) -> None:
    clock = Clock()
    deadline = an_hour(clock)
    deadline.begin_training()
    before = 0.0
    for phase, seconds in measured:
        if deadline.should_stop():
            break
        clock.now += min(seconds, deadline.training_left())
        deadline.observe(phase, seconds)  # type: ignore[arg-type]
        fraction = deadline.fraction_used()
        assert before <= fraction <= 1.0
        assert deadline.remaining() >= 60.0
        before = fraction


def test_a_kill_at_a_unix_time_is_as_far_away_on_the_monotonic_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = SimpleNamespace(time=lambda: 1_700_000_000.0, monotonic=lambda: 50.0)
    monkeypatch.setattr("miner.publishing.deadline.time", clocks)
    kills = [Deadline.at(kill) for kill in (1_700_000_900.0, 1_699_999_000.0)]
    assert [kill and kill.ends_at for kill in kills] == [950.0, 50.0]  # the second is past
    assert Deadline.at(None) is None
