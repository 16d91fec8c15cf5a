"""Turns a played episode into a replay: every hand, bid and point, next to the exact replies.
Where there is no board, what was shown and said is the replay.

A policy sees neither the opponent's bid of a round nor the last round, which plays itself. Both
follow from (task_id, seed) and the actions, so the game is played again in-process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from miner.config.contract import GAMES
from miner.environments.games import CHANCE, GameSession, goofspiel
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.reporting.records import Move, Replay, Round

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
    """A replay of what is known of any episode, and of what was `played` in it."""
    known = episode.model_dump(exclude={"replies"})
    return Replay(**known, channel=result.channel, policy=result.policy, **played)


def _played_again(result: EvaluationResult, episode: EpisodeRecord) -> Replay:
    """The replay of a game; the channel "step" has other random streams than the rest."""
    stream: Literal["train", "evaluate"] = "train" if result.channel == "step" else "evaluate"
    session = GameSession(episode.task_id, episode.seed, opponent=episode.opponent, stream=stream)
    turns, unanswered = _by_turn(episode.replies)
    states: list[str] = []
    for action, _ in turns:
        states.append(session.state_text())
        session.play(action)
    score = episode.score
    ended = session.done and not episode.failure and score is not None
    if ended and abs(session.score() - (score or 0.0)) > 1e-6:
        raise ValueError(
            f"{episode.environment} task {episode.task_id}, seed {episode.seed}, over "
            f"{result.channel!r} scored {score}, but its actions lead to {session.score()}: the "
            "server played other cards than it was asked to"
        )
    is_goofspiel = session.game_name == "goofspiel"
    return replay_with(
        result,
        episode,
        rounds=tuple(_rounds(session, states, turns)) if is_goofspiel else (),
        moves=tuple(_moves(session, turns)),
        unanswered=unanswered,
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
    me = session.agent_seat
    opponent_bids = [m.action + 1 for m in session.history if m.player == 1 - me]
    shown = [goofspiel.parse_state(text) for text in states]
    played = [
        (state.prize, state.hands[me], state.hands[1 - me], action + 1, opponent_bid, replies)
        for state, (action, replies), opponent_bid in zip(shown, turns, opponent_bids, strict=True)
    ]
    if session.done and played:
        _, own, other, bid, opponent_bid, _ = played[-1]
        own = tuple(card for card in own if card != bid)
        other = tuple(card for card in other if card != opponent_bid)
        played.append((shown[-1].remaining[0], own, other, own[0], other[0], ()))
    points = opponent_points = 0
    for prize, own, other, bid, opponent_bid, replies in played:
        points += prize * (bid > opponent_bid)
        opponent_points += prize * (opponent_bid > bid)
        yield Round(
            prize=prize,
            agent_hand=own,
            opponent_hand=other,
            agent_bid=bid,
            opponent_bid=opponent_bid,
            agent_points=points,
            opponent_points=opponent_points,
            forced=not replies,
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
