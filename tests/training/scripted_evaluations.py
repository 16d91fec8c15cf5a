"""A held-out evaluation whose scores are scripted."""

import math

from miner.distributed.ranks import Ranks
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.learning.schedule import Schedule
from miner.publishing.errors import PublishingError
from miner.reporting.run_folder import RunFolder
from miner.training.held_out import HeldOut


class PublisherDouble:
    def __init__(self):
        self.steps = []
        self.failures = iter(())

    def publish(self, score, last):
        failure = next(self.failures, "")
        if failure and last:
            raise PublishingError(failure)
        if not failure:
            self.steps.append((score.step, score.score, score.episodes))
        return failure


def result(scores):
    episodes = tuple(
        EpisodeRecord(
            environment="goofspiel",
            task_id=i,
            seed=i,
            opponent="random",
            seat=i % 2,
            deck_size=8,
            score=score,
            failure=None if score is not None else "infrastructure",
            message="" if score is not None else f"server {i} is gone",
        )
        for i, score in enumerate(scores)
    )
    return EvaluationResult(
        policy="model", channel="builtin", environment="goofspiel", episodes=episodes
    )


class World:
    """A held-out callback whose evaluations are scripted."""

    def __init__(
        self,
        run_dir,
        *evaluations,
        gate=None,
        time_share=1.0,
        took=0.0,
        kill=math.inf,
        whole=0.0,
        engine="",
    ):
        self.now = 0.0
        self.took = took
        self.evaluations = [result(scores) for scores in evaluations]
        self.publisher = PublisherDouble()
        self.notes = []
        self.run_dir = run_dir
        self.schedule = Schedule(100, kill_in=kill, margin=0.0, guesses={}, clock=lambda: self.now)
        self.held_out = HeldOut(
            self.evaluate,
            lambda score, last: self.publisher.publish(score, last),
            run_dir,
            self.schedule,
            ranks=Ranks(),
            every_steps=10,
            time_share=time_share,
            clock=lambda: self.now,
            note=self.notes.append,
            gate=gate,
            whole=whole,
            engine=engine,
        )

    def evaluate(self):
        self.now += self.took
        return self.evaluations.pop(0)

    def records(self):
        return RunFolder(self.run_dir).read().evaluations
