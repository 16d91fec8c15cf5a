"""A miner's own ideas of play: functions that value legal moves or choose one."""

from collections.abc import Callable, Mapping
from typing import Any

from miner.config.errors import ConfigurationError
from miner.duel.players.rules import Choice
from miner.duel.teachers import Seen, Values, taught_values
from miner.duel.turn import Request
from miner.environments.own.entry import load_function, number_of

Taught = Callable[[str, Seen], Values]
"""A game's name and what a turn shows -> the chance to win by legal action."""

TEACHER, OPPONENT = "demonstrations.teacher", "opponent"


def taught_by(entry: str) -> Taught:
    """The user's function where `entry` names one and it returns values, else the teachers.

    Raises: `ConfigurationError` for one that cannot be imported; the returned function does for
        what it raises, and for values that are not a chance for each legal action.
    """
    if not entry:
        return taught_values
    function = load_function(entry, TEACHER, "teach(game, seen)")

    def taught(game: str, seen: Seen) -> Values:
        found: Any = function(game, seen)
        if found is None:
            return taught_values(game, seen)
        given = found if isinstance(found, Mapping) else {}
        values = {action: number_of(value) for action, value in given.items()}
        known = {action: v for action, v in values.items() if v is not None and -0.1 <= v <= 1.1}
        if known.keys() != seen.actions.keys():
            raise ConfigurationError(
                f"{TEACHER} {entry!r} returned {found!r} in {game}: expected a chance to win, 0 to "
                f"1, for each of the legal actions {list(seen.actions)}"
            )
        return known

    return taught


def chosen_by(entry: str) -> Choice:
    """The user's function as an opponent. Raises: as `taught_by`, for what is no legal action."""
    function = load_function(entry, OPPONENT, "play(game, seen)")

    def choose(request: Request) -> int:
        seen = Seen.of(request)
        action = function(request.table.game.name, seen)
        number = number_of(action)
        if number is None or number not in request.legal:
            raise ConfigurationError(
                f"{OPPONENT} {entry!r} returned {action!r} in {request.table.game.name}: expected "
                f"one of the legal actions {list(seen.actions)}"
            )
        return int(number)

    return choose
