"""Turns a played episode into a replay: every hand, bid and point, next to the exact replies.
Where there is no board, what was shown and said is the replay.

A policy sees neither the opponent's bid of a round nor the last round, which plays itself. Both
follow from (task_id, seed) and the actions, so the game is played again in-process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from miner.config.contract import GAMES
from miner.environments.base import EpisodeTask
from miner.environments.games import CHANCE, GameSession, goofspiel
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.reporting.records import Move, Replay, Round

Turn = tuple[int, tuple[Reply, ...]]
"""The action of one turn, and all replies it took to name it."""


def build_transcript(
    task: EpisodeTask,
    replies: Sequence[Reply],
    *,
    policy: str,
    channel: str,
    score: float | None,
    failure: str | None = None,
) -> Replay:
    """What was shown and said, for environments that have no board. Arguments as `build_replay`."""
    moves = [
        move
        for reply in replies
        for move in (
            *(Move(by="environment", label=text) for text in reply.shown),
            Move(by="agent", label="", replies=(reply,)),
        )
    ]
    return Replay(
        environment=task.environment,
        task_id=task.task_id,
        seed=task.seed,
        opponent=task.opponent,
        channel=channel,
        policy=policy,
        score=score,
        failure=failure,
        moves=tuple(moves),
    )


def build_replay(
    task: EpisodeTask,
    replies: Sequence[Reply],
    *,
    policy: str,
    channel: str,
    score: float | None,
    failure: str | None = None,
) -> Replay:
    """The replay of an episode, finished or broken off.

    Args:
        replies: the policy's replies in order, with the actions that were played.
        channel: name of the channel; "step" uses other random streams than the rest.
        score: the graded score, which the game played again must reach.

    Raises: ValueError when the actions or the score do not belong to this task's game.
    """
    stream: Literal["train", "evaluate"] = "train" if channel == "step" else "evaluate"
    session = GameSession(task.task_id, task.seed, opponent=task.opponent, stream=stream)
    turns, unanswered = _by_turn(replies)
    states: list[str] = []
    for action, _ in turns:
        states.append(session.state_text())
        session.play(action)
    if session.done and not failure and score is not None and abs(session.score() - score) > 1e-6:
        raise ValueError(
            f"{task} over {channel!r} scored {score}, but its actions lead to {session.score()}: "
            "the server played other cards than it was asked to"
        )
    is_goofspiel = session.game_name == "goofspiel"
    return Replay(
        environment=task.environment,
        task_id=task.task_id,
        seed=task.seed,
        opponent=task.opponent,
        seat=session.agent_seat,
        deck_size=goofspiel.deck_size(task.task_id) if is_goofspiel else None,
        channel=channel,
        policy=policy,
        score=score,
        failure=failure,
        rounds=tuple(_rounds(session, states, turns)) if is_goofspiel else (),
        moves=tuple(_moves(session, turns)),
        unanswered=unanswered,
    )


def replay_of(result: EvaluationResult, episode: EpisodeRecord) -> Replay:
    """The replay of one evaluated episode. Raises: ValueError as `build_replay`."""
    task = EpisodeTask(episode.environment, episode.task_id, episode.seed, episode.opponent)
    build = build_replay if task.environment in GAMES else build_transcript
    return build(
        task,
        episode.replies,
        policy=result.policy,
        channel=result.channel,
        score=episode.score,
        failure=episode.failure,
    )


def _by_turn(replies: Sequence[Reply]) -> tuple[list[Turn], tuple[Reply, ...]]:
    """The turns that found an action, and the replies of the turn that never did."""
    turns: list[Turn] = []
    pending: list[Reply] = []
    for reply in replies:
        pending.append(reply)
        if reply.valid:
            if reply.action is None:
                raise ValueError(f"the action of the reply {reply.text[:80]!r} is not known")
            turns.append((reply.action, tuple(pending)))
            pending = []
    return turns, tuple(pending)


def _rounds(session: GameSession, states: Iterable[str], turns: Sequence[Turn]) -> Iterable[Round]:
    seat = session.agent_seat
    opponent_bids = [m.action + 1 for m in session.history if m.player == 1 - seat]
    points = [0, 0]
    last: goofspiel.GoofspielState | None = None
    for text, (action, replies), opponent_bid in zip(states, turns, opponent_bids, strict=True):
        last = goofspiel.parse_state(text)
        bids = (action + 1, opponent_bid)
        _award(points, last.prize, bids)
        yield _round(seat, last.prize, last.hands, bids, points, replies=replies)
    if session.done and last is not None:
        bids = (turns[-1][0] + 1, opponent_bids[-1])
        agent = tuple(card for card in last.hands[seat] if card != bids[0])
        opponent = tuple(card for card in last.hands[1 - seat] if card != bids[1])
        hands = (agent, opponent) if seat == 0 else (opponent, agent)
        prize = last.remaining[0]
        _award(points, prize, (agent[0], opponent[0]))
        yield _round(seat, prize, hands, (agent[0], opponent[0]), points, forced=True)


def _award(points: list[int], prize: int, bids: tuple[int, int]) -> None:
    if bids[0] != bids[1]:
        points[0 if bids[0] > bids[1] else 1] += prize


def _round(
    seat: int,
    prize: int,
    hands: tuple[tuple[int, ...], tuple[int, ...]],
    bids: tuple[int, int],
    points: Sequence[int],
    *,
    forced: bool = False,
    replies: tuple[Reply, ...] = (),
) -> Round:
    return Round(
        prize=prize,
        agent_hand=hands[seat],
        opponent_hand=hands[1 - seat],
        agent_bid=bids[0],
        opponent_bid=bids[1],
        agent_points=points[0],
        opponent_points=points[1],
        forced=forced,
        replies=replies,
    )


def _moves(session: GameSession, turns: Sequence[Turn]) -> Iterable[Move]:
    replies = iter(turns)
    for player, _, label in session.history:
        if player == CHANCE:
            yield Move(by="chance", label=label)
        elif player == session.agent_seat:
            yield Move(by="agent", label=label, replies=next(replies)[1])
        else:
            yield Move(by="opponent", label=label)
