"""Replay of an evaluated duel: it is played again from its replies, and drawn move by move."""

from miner.duel.channel.environment import DuelSource
from miner.duel.channel.tasks import duel_of
from miner.duel.play import LONGEST_CONTENT
from miner.duel.table import Table
from miner.environments.base import EpisodeTask, Transition
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.reporting.records import Move, Replay
from miner.reporting.replay import replay_with
from miner.reporting.scenes import scenes


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
        table = duel.table
    finally:
        await duel.close()
    if end is not None and end.done and end.score != found.score:
        raise ValueError(
            f"{task} scored {found.score}, and {end.score} when its replies were given again: the "
            f"opponent {task.opponent} does not play the same game twice"
        )
    moves, unanswered = _moves(table, duel_of(task)[2], found.replies)
    opening = len(table.opening)
    details = [
        {"said": move.replies[0].text[:LONGEST_CONTENT]} if move.replies else {}
        for move in moves[opening:]
        if move.by != "chance"
    ]
    history = table.state.history()
    shown = scenes(table.game, table.loaded, history, opening=opening, details=details)
    return replay_with(result, found, moves=moves, unanswered=unanswered, scenes=tuple(shown))


def _moves(
    table: Table, seat: int, replies: tuple[Reply, ...]
) -> tuple[tuple[Move, ...], tuple[Reply, ...]]:
    """The moves after the opening, and the replies that were none."""
    left, moves = list(replies), []
    state = table.loaded.new_initial_state()
    for number, action in enumerate(table.state.history()):
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
