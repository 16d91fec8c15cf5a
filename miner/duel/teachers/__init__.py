"""Teachers: good moves from what a prompt shows, one module a game."""

from functools import cache

from miner.duel.teachers.base import ByValue, Seen, Teacher, Values, best
from miner.duel.teachers.clobber import ClobberTeacher
from miner.duel.teachers.gin_rummy import GinRummyTeacher
from miner.duel.teachers.goofspiel import GoofspielTeacher
from miner.duel.teachers.leduc_poker import LeducTeacher
from miner.duel.teachers.liars_dice import LiarsDiceTeacher
from miner.duel.teachers.othello import OthelloTeacher
from miner.duel.turn import Request

TEACHERS = {
    "goofspiel": GoofspielTeacher,
    "liars_dice": LiarsDiceTeacher,
    "leduc_poker": LeducTeacher,
    "gin_rummy": GinRummyTeacher,
    "othello": OthelloTeacher,
    "clobber": ClobberTeacher,
}
"""By the game's name."""


MARGIN = 0.02
"""By which the taught move is ahead of all others, however close they are."""
RULE_MARGIN = 0.05
"""The same where a rule and not a value chose it: Goofspiel's neighbours of 13 cards are 0.002
apart in value, and the wrong one loses to an opponent that follows the rule."""


@cache
def teacher_of(game: str) -> Teacher:
    """The teacher of a game of the tournament; what it has solved is kept.

    Raises: `LookupError` for a game without one.
    """
    if game not in TEACHERS:
        raise LookupError(
            f"{game} has no teacher: add one to TEACHERS in miner/duel/teachers/__init__.py"
        )
    teacher: Teacher = TEACHERS[game]()
    return teacher


def taught_move(request: Request) -> int:
    """Move of the game's teacher, from what the request shows."""
    return teacher_of(request.table.game.name).move(Seen.of(request))


def taught_note(request: Request) -> str:
    """Note of the game's teacher on the opponent after a game; empty: none."""
    return teacher_of(request.table.game.name).note(Seen.of(request))


def taught_values(game: str, seen: Seen) -> Values:
    """The teacher's values, of which that of the move it teaches is the highest."""
    teacher = teacher_of(game)
    values = teacher.values(seen)
    if isinstance(teacher, ByValue):
        return values | {best(values): max(values.values()) + MARGIN}
    return values | {teacher.move(seen): max(values.values()) + RULE_MARGIN}


__all__ = [
    "TEACHERS",
    "Seen",
    "Teacher",
    "Values",
    "best",
    "taught_move",
    "taught_note",
    "taught_values",
    "teacher_of",
]
