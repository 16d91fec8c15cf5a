"""Turns a played episode into a replay: every position and move, next to the exact replies.
Without a board, messages and replies are the replay.

A policy does not see the opponent's hand, nor moves that are made for it. They follow from
(task_id, seed) and the actions, so the game is played again in-process.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pyspiel

from miner.config.contract import GAMES
from miner.environments.games import CHANCE, GameSession
from miner.environments.games import Move as Event
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.games import Game, Scene
from miner.reporting.records import Move, Replay
from miner.reporting.scenes import scenes


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


def replay_of_moves(
    result: EvaluationResult,
    episode: EpisodeRecord,
    game: Game,
    loaded: pyspiel.Game,
    history: Sequence[Event],
    turns: Iterable[Sequence[Reply]],
    *,
    opening: int = 0,
    longest: int | None = None,
) -> Replay:
    """The replay of a game by its moves.

    Args:
        loaded: the game, in which moves follow each other.
        turns: replies to each of the agent's moves, then those that led to none.
        opening: moves before the players' first, drawn for them.
        longest: characters of a turn's replies that its scene shows.
    """
    left = iter(turns)
    moves: list[Move] = []
    details: list[Scene] = []
    for number, (player, _, label) in enumerate(history):
        if number < opening:
            moves.append(Move(by="chance", label=f"opening: {label}"))
        elif player == CHANCE:
            moves.append(Move(by="chance", label=label))
        else:
            agent = player == episode.seat
            replies = tuple(next(left, ())) if agent else ()
            moves.append(Move(by="agent" if agent else "opponent", label=label, replies=replies))
            said = "\n".join(reply.text for reply in replies)[:longest]
            details.append({"said": said} if replies else {})
    actions = [action for _, action, _ in history]
    return replay_with(
        result,
        episode,
        moves=tuple(moves),
        unanswered=tuple(reply for turn in left for reply in turn),
        scenes=tuple(scenes(game, loaded, actions, opening=opening, details=details)),
    )


def _played_again(result: EvaluationResult, episode: EpisodeRecord) -> Replay:
    """The replay of a game; the channel "step" has other random streams than the rest."""
    stream: Literal["train", "evaluate"] = "train" if result.channel == "step" else "evaluate"
    session = GameSession(episode.task_id, episode.seed, opponent=episode.opponent, stream=stream)
    turns: list[list[Reply]] = [[]]
    for reply in episode.replies:
        turns[-1].append(reply)
        if reply.valid:
            if reply.action is None:
                raise ValueError(f"the action of the reply {reply.text[:80]!r} is not known")
            session.play(reply.action)
            turns.append([])
    score = episode.score
    ended = session.done and not episode.failure and score is not None
    if ended and abs(session.score() - (score or 0.0)) > 1e-6:
        raise ValueError(
            f"{episode.environment} task {episode.task_id}, seed {episode.seed}, over "
            f"{result.channel!r} scored {score}, but its actions lead to {session.score()}: the "
            "server played other cards than it was asked to"
        )
    loaded = session.game.load_by_turns(session.task_id)
    return replay_of_moves(result, episode, session.game, loaded, session.history, turns)
