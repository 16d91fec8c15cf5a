"""The times of a run: what is kept free before the kill, and in which order things end."""

from dataclasses import replace

import pytest

from entrypoint.paths import Paths
from entrypoint.schedule import plan_run
from tests.entrypoint.test_run_settings import FACTS, job, planned

START = 1000.0


def left_before_the_kill(hours: float, weight_bytes: float) -> tuple[float, float]:
    """Seconds from the trainer's end, and from the end of everything, to the kill."""
    given = job(seconds=3600 * hours)
    facts = replace(FACTS, weight_bytes=int(weight_bytes))
    plan = plan_run(given, Paths.of(given, {}), planned()[2], facts, START, {})
    assert plan.kill_at == START + 3600 * hours
    return plan.kill_at - plan.trainer_ends_at, plan.kill_at - plan.ends_at


@pytest.mark.parametrize(("weight_bytes", "seconds"), [(1e6, 30.005), (1e9, 35.0), (16e9, 110.0)])
def test_the_model_can_be_written_and_loaded_after_the_trainers_end(
    weight_bytes: float, seconds: float
) -> None:
    """Half a minute, and the weights twice at 400 MB each second: they were written just before."""
    assert left_before_the_kill(5, weight_bytes) == pytest.approx((seconds, seconds / 2))


def test_a_short_job_gives_a_tenth_of_its_time_at_most() -> None:
    assert left_before_the_kill(1 / 60, 1e6) == pytest.approx((6.0, 3.0))
    assert left_before_the_kill(0.5, 160e9) == pytest.approx((180.0, 90.0))
