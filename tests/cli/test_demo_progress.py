"""What the demo says before and while a person waits."""

import io

from rich.console import Console

from miner.cli.demo import Sizes, WarmStartProgress, announce


def log():
    file = io.StringIO()
    return file, Console(file=file, force_terminal=False, width=40)


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end():
    file, console = log()
    seconds = iter(range(0, 1000, 4))  # each look at the clock is 4 s later
    progress = WarmStartProgress(console, clock=lambda: float(next(seconds)))
    for step in range(1, 9):
        progress(step, 8, 0.5)
    assert file.getvalue().splitlines() == [
        "warm start 3/8 loss 0.50 eta 0:00:20",
        "warm start 6/8 loss 0.50 eta 0:00:08",
        "warm start 8/8 loss 0.50 eta 0:00:00",
    ]


def test_the_time_it_takes_is_said_at_the_start():
    file, console = log()
    announce(console, Sizes.EIGHT, 240.0, base_is_there=False)
    assert file.getvalue() == (
        "expect 6 to 9 minutes: the base model 1 to 2.5 (kept for next time), training 4.0, "
        "all else 1 to 2\n"
    )
    file, console = log()
    announce(console, Sizes.ALL, 660.0, base_is_there=True)
    assert file.getvalue() == (
        "expect 12 to 13 minutes: the base model is there already, training 11.0, all else 1 to 2\n"
    )
