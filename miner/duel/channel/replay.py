"""Replay of an evaluated duel: it is played again from its replies, and drawn move by move."""

from miner.duel.channel.environment import DuelSource
from miner.duel.play import LONGEST_CONTENT
from miner.environments.base import EpisodeTask, Transition
from miner.environments.games import Move as Event
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.reporting.records import Replay
from miner.reporting.replay import replay_of_moves


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
    state = table.loaded.new_initial_state()
    history: list[Event] = []
    for action in table.state.history():
        player = state.current_player()
        history.append(Event(player, action, str(state.action_to_string(player, action))))
        state.apply_action(action)
    turns = [[reply] for reply in found.replies]
    return replay_of_moves(
        *(result, found, table.game, table.loaded, history, turns),
        opening=len(table.opening),
        longest=LONGEST_CONTENT,
    )
