"""`python -m miner train`, with each finished episode replayed by the rules, in all ranks."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.chaos_run import CHECKED, TRAINER
from miner.__main__ import main as miner
from miner.cli import train as command
from miner.environments import EpisodeTask
from miner.environments.builtin import BuiltinSource
from miner.rollout.scheduler import Scheduler
from miner.rollout.trajectory import Trajectory


async def true_score(trajectory: Any) -> float | None:
    """Score of an episode's replies by the rules; None if they do not end it."""
    environment = BuiltinSource({}).open()
    await environment.reset(trajectory.task)
    score = None
    for turn in trajectory.turns:
        score = (await environment.step(turn.reply)).score
    await environment.close()
    return score


def _keep(record: dict[str, Any]) -> None:
    with open(os.environ[CHECKED], "a") as file:
        file.write(json.dumps(record) + "\n")


def main() -> None:
    """Train by the arguments of `python -m miner train`."""
    play, launch = Scheduler._member, command.launch

    async def checked(scheduler: Scheduler, task: EpisodeTask) -> Any:
        outcome = await play(scheduler, task)
        finished = isinstance(outcome, Trajectory)
        _keep(
            {
                "score": outcome.score if finished else None,
                "true": await true_score(outcome) if finished else None,
            }
        )
        return outcome

    Scheduler._member = checked  # type: ignore[method-assign, assignment]

    def launch_checked(
        count: int, command: Sequence[str], prepare: Callable[[], None] = lambda: None
    ) -> int:
        return launch(count, [*TRAINER, *command[4:]], prepare)

    command.launch = launch_checked
    sys.argv[:1] = ["miner", "train"]
    miner()


if __name__ == "__main__":
    main()
