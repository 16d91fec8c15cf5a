"""The rules of thumb that public winners of the tournament imitate, as an opponent.

Against them it shows what a model has learned beyond its teachers: results count by sign, so in
Leduc "raise, never fold" holds its own against everything, and in Goofspiel the prize's value wins
against all that do not expect it.
"""

import pyspiel

from miner.duel.players.rules import prize_bid
from miner.duel.teachers import Seen, teacher_of
from miner.duel.teachers.clobber import board
from miner.duel.teachers.liars_dice import by_the_odds, read_turn
from miner.duel.turn import Request
from miner.games.clobber import CLOBBER

PLIES = 3
"""Of Clobber's search; 0.71 against random moves on 4x5."""


def rival_move(request: Request) -> int:
    """A legal action by the game's rule."""
    return rule_of_thumb(request.table.game.name, Seen.of(request))


def rule_of_thumb(game: str, seen: Seen) -> int:
    """A legal action by the game's rule; the teacher's where it has none."""
    if game == "goofspiel":
        return prize_bid(seen.state, seen.actions)
    if game == "leduc_poker":
        return max(seen.actions)  # 0 folds, 1 calls, 2 raises
    if game == "liars_dice":
        return by_the_odds(*read_turn(seen))
    if game == "clobber":
        return _within_plies(board(CLOBBER, seen), PLIES)
    return teacher_of(game).move(seen)


def _within_plies(state: pyspiel.State, plies: int) -> int:
    """The first move that wins within so many plies, else the first that does not lose."""
    moves = state.legal_actions()
    return int(max(moves, key=lambda move: -_value(state.child(move), plies - 1)))


def _value(state: pyspiel.State, plies: int) -> int:
    """1, 0 or -1 for the player to move: won, undecided or lost within so many plies."""
    if state.is_terminal():
        return -1
    if not plies:
        return 0
    return max(-_value(state.child(move), plies - 1) for move in state.legal_actions())
