"""Replays of evaluated episodes; a duel is played again from its replies, every move of both sides
in order."""

from __future__ import annotations

from collections.abc import Callable

from miner.duel.channel.environment import DuelSource
from miner.duel.channel.tasks import duel_of
from miner.duel.games import Table
from miner.environments.base import EnvironmentSource, EpisodeTask, Transition
from miner.environments.errors import EnvironmentFault
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.reporting.records import Move, Replay
from miner.reporting.replay import replay_of, replay_with


async def chosen_replays(
    source: EnvironmentSource,
    result: EvaluationResult,
    count: int,
    failed: Callable[[str], None],
) -> list[Replay]:
    """Replays of a lost or broken episode, a won one, and others, `count` at most.

    Args:
        source: where the episodes of `result` were played.
        failed: is called with the reason where an episode has no replay.
    """
    played = [episode for episode in result.episodes if episode.replies]
    lost = [episode for episode in played if episode.score is not None and episode.score < 0.5]
    won = [episode for episode in played if episode.score is not None and episode.score > 0.5]
    first = lost[:1] + won[:1]
    replays = []
    for episode in (first + [episode for episode in played if episode not in first])[:count]:
        try:
            if isinstance(source, DuelSource):
                replays.append(await replay_duel(source, result, episode))
            else:
                replays.append(replay_of(result, episode))
        except (ValueError, EnvironmentFault) as error:
            failed(f"no replay: {error}")
    return replays


async def replay_duel(source: DuelSource, result: EvaluationResult, found: EpisodeRecord) -> Replay:
    """The replay of an evaluated duel; the opponent makes its moves once more.

    Raises: ValueError where the game played again ends otherwise: the opponent is not the same.
    """
    task = EpisodeTask(found.environment, found.task_id, found.seed, found.opponent)
    duel = source.open()
    await duel.reset(task)
    end: Transition | None = None
    try:
        for reply in found.replies:
            end = await duel.step(reply.text)
        history = duel.history
    finally:
        await duel.close()
    if end is not None and end.done and end.score != found.score:
        raise ValueError(
            f"{task} scored {found.score}, and {end.score} when its replies were given again: the "
            f"opponent {task.opponent} does not play the same game twice"
        )
    moves, unanswered = _moves(task, history, found.replies)
    return replay_with(result, found, moves=moves, unanswered=unanswered)


def _moves(
    task: EpisodeTask, history: list[int], replies: tuple[Reply, ...]
) -> tuple[tuple[Move, ...], tuple[Reply, ...]]:
    """The moves after the opening, and the replies that were none."""
    game, seed, seat = duel_of(task)
    table, left, moves = Table(game, seed), list(replies), []
    state = table.loaded.new_initial_state()
    for number, action in enumerate(history):
        player = state.current_player()
        label = str(state.action_to_string(player, action))
        state.apply_action(action)
        if number < len(table.opening):
            moves.append(Move(by="chance", label=f"opening: {label}"))
        elif player < 0:
            moves.append(Move(by="chance", label=label))
        else:
            said = (left.pop(0),) if player == seat and left else ()
            moves.append(
                Move(by="agent" if player == seat else "opponent", label=label, replies=said)
            )
    return tuple(moves), tuple(left)
