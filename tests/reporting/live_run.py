"""A run as `miner watch` reads it."""

from pathlib import Path

from miner.config.heartbeat import Heartbeat
from miner.config.run_files import EPISODES_FILE
from miner.environments import EpisodeTask
from miner.evaluation.results import EpisodeRecord
from miner.evaluation.statistics import Estimate
from miner.reporting.records import (
    LOGPROB_GAP,
    RecordFile,
    TrainedEpisode,
)
from miner.reporting.run_folder import RunFolder
from miner.reporting.watch import LiveRun
from tests.reporting.made import evaluation, lowest_replies, step

NOW = 1_700_000_100.0


SETTINGS = '[environment]\nname = "goofspiel"\nchannel = "graded"\ndeck_sizes = [8]\n'


def run_of(folder: Path, kind: str = "healthy", steps: int = 40) -> RunFolder:
    """A run that is at its step `steps`: healthy, with flat groups, or with a growing gap."""
    run = RunFolder(folder)
    for number in range(1, steps + 1):
        gap = 0.002 * 1.12**number if kind == "gap" else 0.002
        run.steps.append(
            step(number, groups=16, flat_groups=14 if kind == "flat" else 2, eta_seconds=90.0,
                 score=0.3 + number / 100, phases={"playing": 1.5, "learning": 0.5},
                 metrics={"entropy": 1.0, LOGPROB_GAP: gap})
        )  # fmt: skip
    for number in (0, 20, 40):
        gain = Estimate(mean=0.2, low=0.1, high=0.3, n=100) if number else None
        run.evaluations.append(
            evaluation("base" if number == 0 else "checkpoint", 0.3 + number / 100, step=number,
                       split="held_out", published=number != 40, difference=gain)
        )  # fmt: skip
    task = EpisodeTask("goofspiel", 0, 0)
    replies, score = lowest_replies(task)
    episode = EpisodeRecord(
        environment="goofspiel", task_id=0, seed=0, opponent="random", seat=0, deck_size=8,
        score=score, replies=tuple(replies),
    )  # fmt: skip
    RecordFile(folder / EPISODES_FILE, TrainedEpisode).append(
        TrainedEpisode(time=NOW, episode=episode)
    )
    Heartbeat(time=NOW - 3, phase="rollout", step=steps).write(folder / "heartbeat.json")
    (folder / "settings.toml").write_text(SETTINGS)
    return run


def live(folder: Path, now: float = NOW, free: int = 10**12) -> LiveRun:
    return LiveRun(folder, clock=lambda: now, free=lambda path: free)
