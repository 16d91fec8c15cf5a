"""Report of /evaluate on a game that has ended or was aborted.

Invariant: of a simultaneous move only the agent's half is reported, as the real server does.
"""

from typing import Any

from miner.environments.games import CHANCE, GameSession, Move


def action_history(session: GameSession) -> list[dict[str, Any]]:
    """The events of a game in the order of their happening."""
    return [
        {
            "player_id": move.player,
            "action": move.action,
            "action_str": move.label,
            "is_llm": move.player == session.agent_seat,
        }
        for move in session.history
        if _reported(session, move)
    ]


def last_observation(session: GameSession) -> str:
    """OpenSpiel's observation of the state in which the last reported event happened."""
    game = session.game.load_server(session.task_id)
    state = game.new_initial_state()
    events = _events(session)
    for event in events[:-1]:
        if len(event) == 1:
            state.apply_action(event[0].action)
        else:
            state.apply_actions([move.action for move in event])
    if game.get_type().provides_observation_string:
        return state.observation_string(session.agent_seat)
    return str(state)


def _reported(session: GameSession, move: Move) -> bool:
    return not session.simultaneous or move.player in (CHANCE, session.agent_seat)


def _events(session: GameSession) -> list[list[Move]]:
    """The history with the halves of each simultaneous move joined."""
    events: list[list[Move]] = []
    for move in session.history:
        if session.simultaneous and move.player > 0:
            events[-1].append(move)
        else:
            events.append([move])
    return events
