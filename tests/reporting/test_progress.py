"""Progress: fixed lines for logs, a bar for people."""

import io

import pytest
from rich.console import Console

from miner.evaluation.results import EpisodeRecord, Reply
from miner.reporting.progress import EvaluationProgress, TrainingProgress, WarmStartProgress
from miner.reporting.records import TARGET_KL, StepRecord
from tests.reporting.made import step as made_step
from tests.virtual_time import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def log() -> Console:
    return Console(file=io.StringIO(), width=60)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def step(
    number: int,
    reward: float | None,
    score: float | None,
    rate: float,
    left: float | None,
    **fields: object,
) -> StepRecord:
    known = {"reward": reward, "score": score, "tokens_per_second": rate, "eta_seconds": left}
    return made_step(number, **known, **fields)


def test_a_step_is_one_fixed_line_in_a_log() -> None:
    console = log()
    with TrainingProgress(300, console=console) as progress:
        work = {"rows": 9, "rows_left_out": 1, "row_tokens": 9, "computed_tokens": 7}
        progress.update(step(12, 0.41, 0.62, 5120.4, 2469.9, metrics=work))
        progress.update(step(13, None, None, 0.0, 86400 + 61))
        progress.update(step(14, -0.256, 1.0, 9e6, None))
        progress.update(step(15, 0.5, 0.5, 10.0, None, metrics={TARGET_KL: 0.126}))
        progress.update(step(16, 0.0, None, 0.0, None, episodes=0, metrics={TARGET_KL: 1.5}))
    assert written(console) == [
        "step 12/300 reward 0.41 score 0.62 tokens/s 5,120 eta 0:41:10 learned 8/9 rows 7/9 tokens",
        "step 13/300 reward - score - tokens/s 0 eta 1 day, 0:01:01 learned -",
        "step 14/300 reward -0.26 score 1.00 tokens/s 9,000,000 eta - learned -",
        "step 15/300 reward 0.50 score 0.50 tokens/s 10 target KL 0.13 eta - learned -",
        "step 16/300 target KL 1.50 eta - learned -",
    ]


def test_a_terminal_shows_a_bar_and_notes_above_it() -> None:
    console = terminal()
    with TrainingProgress(300, console=console) as progress:
        progress.update(step(60, 0.41, 0.62, 5120.0, 240.0))
        progress.note("step 60: held-out score 0.7 [0.6, 0.8]")
    text = "\n".join(written(console))
    for part in ("60/300", "score 0.62", "tokens/s 5,120", "0:04:00 left", "0.7 [0.6, 0.8]"):
        assert part in text
    assert "learned" not in text, "no line of the log"


def episode(score: float | None, invalid: int = 0) -> EpisodeRecord:
    replies = [Reply(text="?", action=None, valid=False, number=False)] * invalid
    return EpisodeRecord(
        environment="goofspiel", task_id=0, seed=0, opponent="random", seat=0, score=score,
        replies=tuple(replies),
    )  # fmt: skip


def test_an_evaluation_is_a_line_for_each_tenth(clock: Clock) -> None:
    console = log()
    with EvaluationProgress(20, "match", console=console, clock=clock) as progress:
        for number in range(20):
            clock.now += 1
            progress.update(episode(None if number == 0 else 1.0, invalid=number == 3))
    lines = written(console)
    assert len(lines) == 10
    assert lines[0] == "episodes 2/20 score 1.00 invalid replies 0 excluded 1 eta 0:00:18"
    assert lines[-1] == "episodes 20/20 score 1.00 invalid replies 1 excluded 1 eta 0:00:00"


def test_the_first_of_episodes_played_at_once_tell_no_time_left(clock: Clock) -> None:
    console = log()
    with EvaluationProgress(4, "match", at_once=3, console=console, clock=clock) as progress:
        for _ in range(4):
            clock.now += 1
            progress.update(episode(1.0))
    left = [line.rpartition(" ")[2] for line in written(console)]
    assert left == ["-", "-", "0:00:01", "0:00:00"]


def test_a_short_evaluation_is_a_line_for_each_episode(clock: Clock) -> None:
    console = log()
    progress = EvaluationProgress(3, "match", console=console, clock=clock)
    progress.update(episode(None))
    assert written(console) == ["episodes 1/3 score - invalid replies 0 excluded 1 eta 0:00:00"]


def test_a_base_model_is_a_line_for_each_tenth_of_the_steps_planned_now(clock: Clock) -> None:
    console = log()
    with WarmStartProgress(30, console=console, clock=clock) as progress:
        for step, total in ((1, 30), (2, 30), (3, 30), (4, 5), (5, 5)):
            clock.now += 4
            progress.update(step, total, 0.5)
    assert written(console) == [
        "warm start 3/30 loss 0.50 eta 0:01:48",
        "warm start 4/5 loss 0.50 eta 0:00:04",
        "warm start 5/5 loss 0.50 eta 0:00:00",
    ]


def test_a_base_model_that_need_not_be_made_leaves_no_bar() -> None:
    console = terminal()
    with WarmStartProgress(30, console=console):
        pass
    assert written(console)[-1].endswith("\x1b[1A\x1b[2K"), "the bar's line is erased"


def test_an_evaluation_in_a_terminal_shows_its_label(clock: Clock) -> None:
    console = terminal()
    with EvaluationProgress(2, "bid = prize", console=console, clock=clock) as progress:
        progress.update(episode(1.0))
        progress.update(episode(0.0))
    text = "\n".join(written(console))
    assert "bid = prize" in text
    assert "2/2" in text
    assert "score 0.50" in text
