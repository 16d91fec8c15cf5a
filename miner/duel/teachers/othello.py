"""Othello: two plies of search for corners and mobility, on boards of two 64-bit numbers."""

from miner.duel.teachers.base import ByValue, Seen, Values, chance
from miner.games.othello import SIZE

PASS = SIZE * SIZE
_ALL = (1 << PASS) - 1
_FIRST_FILE = sum(1 << (SIZE * row) for row in range(SIZE))
_NOT_FIRST, _NOT_LAST = _ALL ^ _FIRST_FILE, _ALL ^ (_FIRST_FILE << (SIZE - 1))
_STEPS = tuple(
    (by, _ALL if by % SIZE == 0 else _NOT_FIRST if by in (1, 9, -7) else _NOT_LAST)
    for by in (1, -1, 8, -8, 7, -7, 9, -9)
)
"""Shift to a neighbour, and the squares that it may reach: a row's end is no neighbour."""

_CORNERS = 1 | 1 << 7 | 1 << 56 | 1 << 63
_CORNER = 8.0
"""Legal moves that a corner is rated at."""

_BESIDE = tuple(
    (1 << corner, 1 << corner + along + down, 1 << corner + along | 1 << corner + down)
    for corner, along, down in ((0, 1, 8), (7, -1, 8), (56, 1, -8), (63, -1, -8))
)
"""Of each corner its square, the one diagonal to it, and both others beside it."""
_DIAGONAL = 4.0
"""Legal moves that a disc on the square diagonal to an empty corner costs; on the others one."""

_DISC = 2.0
"""The same for a disc at the end of the game."""

_SCALE = 8.0

Board = tuple[int, int]
"""Discs of the side to move and of the other one; bit 8 * row + column."""


class OthelloTeacher(ByValue):
    """See the module."""

    def values(self, seen: Seen) -> Values:
        own, other = _board(seen)
        return {
            action: chance(
                -_search((other, own) if action == PASS else _after(own, other, action)), _SCALE
            )
            for action in seen.actions
        }


def legal_moves(own: int, other: int) -> int:
    """Squares where the side to move flips something."""
    found, empty = 0, _ALL & ~(own | other)
    for by, reach in _STEPS:
        line = _shifted(own, by) & reach & other
        for _ in range(SIZE - 3):
            line |= _shifted(line, by) & reach & other
        found |= _shifted(line, by) & reach & empty
    return found


def _after(own: int, other: int, square: int) -> Board:
    """The board after a move, as the other side sees it."""
    placed, flipped = 1 << square, 0
    for by, reach in _STEPS:
        line, ahead = 0, _shifted(placed, by) & reach
        while ahead & other:
            line |= ahead
            ahead = _shifted(ahead, by) & reach
        if ahead & own:
            flipped |= line
    return other & ~flipped, own | placed | flipped


def _search(board: Board) -> float:
    """The best rating that the side to move can reach with one move."""
    own, other = board
    moves = legal_moves(own, other)
    if not moves:
        return _rating(own, other)
    best = -1e9
    while moves:
        square = (moves & -moves).bit_length() - 1
        moves &= moves - 1
        after = _after(own, other, square)
        best = max(best, -_rating(*after))
    return best


def _rating(own: int, other: int) -> float:
    """For the side to move: mobility, corners and what may lose one, or discs at the end."""
    mobility = legal_moves(own, other).bit_count() - legal_moves(other, own).bit_count()
    if not mobility and not legal_moves(own, other):
        return _DISC * (own.bit_count() - other.bit_count())
    corners = (own & _CORNERS).bit_count() - (other & _CORNERS).bit_count()
    return mobility + _CORNER * corners - _risk(own, other)


def _risk(own: int, other: int) -> float:
    """Cost of discs beside empty corners to the first side, less that to the other one."""
    risk = 0.0
    for corner, diagonal, others in _BESIDE:
        if not corner & (own | other):
            risk += _DIAGONAL * (bool(own & diagonal) - bool(other & diagonal))
            risk += (own & others).bit_count() - (other & others).bit_count()
    return risk


def _shifted(bits: int, by: int) -> int:
    return (bits << by if by > 0 else bits >> -by) & _ALL


def _board(seen: Seen) -> Board:
    """Raises: `ValueError` where no board is shown."""
    rows = [line.split()[1:-1] for line in seen.state.splitlines() if line[:1].isdecimal()]
    squares = [square for row in rows for square in row]
    if len(squares) != PASS:
        raise ValueError(f"no board in {seen.state[:120]!r}")
    discs = {piece: sum(1 << i for i, on in enumerate(squares) if on == piece) for piece in "xo"}
    own, other = "xo" if seen.player == 0 else "ox"
    return discs[own], discs[other]
