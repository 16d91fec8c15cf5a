"""The newest training episodes of the policy, turn by turn as they end (`episodes.jsonl`).

Invariant: writing costs no step. At most one episode a second is kept, the file is bounded, and a
disk that refuses it ends the log, not the run.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from miner.config.contract import GAMES
from miner.config.run_files import EPISODES_FILE, write_atomically
from miner.evaluation.results import EpisodeRecord, Reply
from miner.reporting.records import RecordFile, TrainedEpisode
from miner.rollout.groups import LostEpisode, Outcome
from miner.rollout.trajectory import Trajectory, TurnRecord

APART_S = 1.0
MOST_BYTES = 2_000_000
MOST_SHOWN = 4000
"""Characters of a message that are kept."""

logger = logging.getLogger(__name__)


class EpisodeLog:
    """Appends finished episodes, `APART_S` seconds apart; older halves are dropped.

    Args:
        run_dir: the run's folder.
        clock: monotonic seconds.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = RecordFile(run_dir / EPISODES_FILE, TrainedEpisode)
        self._clock = clock
        self._next = 0.0

    def add(self, outcome: Outcome) -> None:
        """Keep the episode, unless it was lost, a critic picked its moves or the last one is too
        recent."""
        now = self._clock()
        if isinstance(outcome, LostEpisode) or not outcome.sampled_tokens or now < self._next:
            return
        self._next = now + APART_S
        try:
            self._file.append(_record(outcome))
            if self._file.path.stat().st_size > MOST_BYTES:
                kept = self._file.path.read_bytes()[-MOST_BYTES // 2 :].partition(b"\n")[2]
                write_atomically(self._file.path, kept.decode())
        except OSError as error:
            self._next = float("inf")
            logger.warning("%s is written no more: %s", self._file.path, error)


def _record(trajectory: Trajectory) -> TrainedEpisode:
    task = trajectory.task
    in_games = task.environment in GAMES
    return TrainedEpisode(
        time=time.time(),
        episode=EpisodeRecord.of(
            task,
            score=trajectory.score,
            replies=tuple(_reply(turn, shown=not in_games) for turn in trajectory.turns),
        ),
    )


def _reply(turn: TurnRecord, *, shown: bool) -> Reply:
    texts = tuple(str(m.get("content", ""))[:MOST_SHOWN] for m in turn.messages) if shown else ()
    return Reply(
        text=turn.reply,
        action=turn.action,
        valid=turn.valid,
        cut=turn.finish_reason == "length",
        shown=texts,
        reward=turn.reward,
    )
