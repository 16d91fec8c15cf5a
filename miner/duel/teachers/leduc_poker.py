"""Leduc poker by the sign of the result: chips lost by folding count as much as any others.

The values are exact for an opponent that picks legal actions uniformly, with the own continuation
"raise, never fold": a raise can only make the opponent fold, and folding never wins.
"""

from collections.abc import Iterator
from functools import cache

import pyspiel

from miner.duel.teachers.base import ByValue, Seen, Values
from miner.games.leduc_poker import LEDUC_POKER

_RANKS, _SUITS = "JQK", "♠♥"
_ACTIONS = {"Fold": 0, "Call": 1, "Raise": 2}
_DECK = range(len(_RANKS) * len(_SUITS))


class LeducTeacher(ByValue):
    """See the module."""

    def values(self, seen: Seen) -> Values:
        totals = dict.fromkeys(seen.actions, 0.0)
        states = list(_states(seen))
        for state in states:
            for action in totals:
                totals[action] += _chance(state.child(action), seen.player) / len(states)
        return totals


def _states(seen: Seen) -> Iterator[pyspiel.State]:
    """The state that is shown, with each card that the opponent may hold."""
    own = _card(seen.field("Your card"))
    public = _card(seen.field("Public card")) if "Public card:" in seen.state else None
    for hidden in _DECK:
        if hidden in (own, public):
            continue
        state = LEDUC_POKER.load_duel(0).new_initial_state()
        for dealt in (own, hidden) if seen.player == 0 else (hidden, own):
            state.apply_action(dealt)
        for action in _played(seen, 1):
            state.apply_action(action)
        if public is not None:
            state.apply_action(public)
            for action in _played(seen, 2):
                state.apply_action(action)
        yield state


def _played(seen: Seen, number: int) -> list[int]:
    name = f"Round {number} actions"
    if f"{name}:" not in seen.state:
        return []
    return [_ACTIONS[word] for word in seen.field(name).split(", ")]


def _card(shown: str) -> int:
    """Number of a card such as `J♠`. Raises: `ValueError`."""
    return len(_SUITS) * _RANKS.index(shown[0]) + _SUITS.index(shown[1])


def _chance(state: pyspiel.State, player: int) -> float:
    return _chance_of(tuple(state.history()), player)


@cache
def _chance_of(history: tuple[int, ...], player: int) -> float:
    """Chance to win from here on, draws half."""
    state = LEDUC_POKER.load_duel(0).new_initial_state()
    for action in history:
        state.apply_action(action)
    if state.is_terminal():
        won = state.returns()[player]
        return 0.5 if won == 0 else float(won > 0)
    legal = state.legal_actions()
    if state.current_player() == player:
        return _chance(state.child(max(legal)), player)
    return sum(_chance(state.child(action), player) for action in legal) / len(legal)
