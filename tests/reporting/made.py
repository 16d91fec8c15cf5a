"""Small real records for tests of reporting."""

from collections.abc import Sequence
from dataclasses import asdict

from miner.config.contract import agent_seat, is_game
from miner.environments import EpisodeTask
from miner.environments.games import GameSession
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.evaluation.statistics import Estimate
from miner.games import deck_size
from miner.reporting.records import EvaluationRecord, Replay, StepRecord
from miner.reporting.replay import replay_of


def step(number: int, **fields: object) -> StepRecord:
    """A training step without trouble."""
    values: dict[str, object] = {
        "step": number,
        "total_steps": 100,
        "time": 1_700_000_000.0 + number,
        "seconds": 2.0,
        "reward": 0.1,
        "score": 0.5,
        "tokens_per_second": 1000.0,
        "episodes": 64,
        "replies": 600,
    }
    return StepRecord.model_validate(values | fields)


def interval(mean: float, n: int = 100) -> Estimate:
    return Estimate(mean=mean, low=max(0.0, mean - 0.1), high=min(1.0, mean + 0.1), n=n)


def evaluation(name: str, mean: float, **fields: object) -> EvaluationRecord:
    """An evaluation on the grader's list with the same score everywhere."""
    values: dict[str, object] = {
        "name": name,
        "split": "grader",
        "channel": "builtin",
        "score": interval(mean),
        "by_deck_size": {size: interval(mean, 20) for size in (8, 10, 12, 14, 16)},
        "by_seat": {seat: interval(mean, 50) for seat in (0, 1)},
        "replies": 1000,
    }
    return EvaluationRecord.model_validate(values | fields)


def lowest_replies(task: EpisodeTask, turns: int | None = None) -> tuple[list[Reply], float]:
    """Replies that always bid the lowest card, for some turns or the whole game, and the score."""
    session = GameSession(task.task_id, task.seed, opponent=task.opponent)
    replies = []
    while not session.done and (turns is None or len(replies) < turns):
        action = session.legal_actions()[0]
        replies.append(Reply(text=str(action), action=action))
        session.play(action)
    return replies, session.score()


def build_replay(
    task: EpisodeTask,
    replies: Sequence[Reply],
    *,
    score: float | None,
    channel: str = "builtin",
    policy: str = "m",
    failure: str | None = None,
) -> Replay:
    """The replay of an episode that an evaluation has recorded so."""
    cards = deck_size(task.environment, task.task_id)
    played = {"replies": replies, "score": score, "failure": failure, "deck_size": cards}
    if is_game(task.environment):
        played["seat"] = agent_seat(task.seed)
    episode = EpisodeRecord.model_validate(asdict(task) | played)
    return replay_of(
        EvaluationResult(
            policy=policy, channel=channel, environment=task.environment, episodes=(episode,)
        ),
        episode,
    )


def replay(task_id: int = 0, seed: int = 0) -> Replay:
    """The replay of a whole game in which the agent always bids its lowest card."""
    task = EpisodeTask("goofspiel", task_id, seed)
    replies, score = lowest_replies(task)
    return build_replay(task, replies, policy="lowest", score=score)
