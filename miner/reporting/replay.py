"""Turns a played episode into a replay: every position and move, next to the exact replies.
Without a board, messages and replies are the replay.

A policy does not see the opponent's hand, nor moves that are made for it. They follow from
(task_id, seed) and the actions, so the game is played again in-process.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from miner.config.contract import GAMES
from miner.environments.games import CHANCE, GameSession
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.games import Scene
from miner.reporting.records import Move, Replay
from miner.reporting.scenes import scenes

Turn = tuple[int, tuple[Reply, ...]]
"""The action of one turn, and all replies it took to name it."""


def replay_of(result: EvaluationResult, episode: EpisodeRecord) -> Replay:
    """The replay of one evaluated episode, finished or broken off.

    Raises: ValueError when the actions or the score do not belong to this task's game.
    """
    if episode.environment in GAMES:
        return _played_again(result, episode)
    moves = [
        move
        for reply in episode.replies
        for move in (
            *(Move(by="environment", label=text) for text in reply.shown),
            Move(by="agent", label="", replies=(reply,)),
        )
    ]
    return replay_with(result, episode, moves=tuple(moves))


def replay_with(result: EvaluationResult, episode: EpisodeRecord, **played: Any) -> Replay:
    """A replay with the fields known of any episode, and those `played` in it."""
    known = episode.model_dump(exclude={"replies"})
    return Replay(**known, channel=result.channel, policy=result.policy, **played)


def _played_again(result: EvaluationResult, episode: EpisodeRecord) -> Replay:
    """The replay of a game; the channel "step" has other random streams than the rest."""
    stream: Literal["train", "evaluate"] = "train" if result.channel == "step" else "evaluate"
    session = GameSession(episode.task_id, episode.seed, opponent=episode.opponent, stream=stream)
    turns, unanswered = _by_turn(episode.replies)
    for action, _ in turns:
        session.play(action)
    score = episode.score
    ended = session.done and not episode.failure and score is not None
    if ended and abs(session.score() - (score or 0.0)) > 1e-6:
        raise ValueError(
            f"{episode.environment} task {episode.task_id}, seed {episode.seed}, over "
            f"{result.channel!r} scored {score}, but its actions lead to {session.score()}: the "
            "server played other cards than it was asked to"
        )
    moves = tuple(_moves(session, turns))
    return replay_with(
        result,
        episode,
        moves=moves,
        unanswered=unanswered,
        scenes=tuple(_scenes(session, moves)),
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


def _scenes(session: GameSession, moves: Sequence[Move]) -> list[Scene]:
    """The positions of a game, with the replies that led to them."""
    details: list[Scene] = [
        {"said": "\n".join(reply.text for reply in move.replies)} if move.replies else {}
        for move in moves
        if move.by != "chance"
    ]
    history = [move.action for move in session.history]
    return scenes(
        session.game, session.game.load_by_turns(session.task_id), history, details=details
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
