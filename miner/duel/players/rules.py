"""Players without a model: random moves, and bids by the prize."""

from collections.abc import Callable, Iterable
from random import Random

from miner.beside import beside
from miner.config.errors import ConfigurationError
from miner.duel.memory import TokenCounter, WordCounter
from miner.duel.players.base import PlayerError, Reply
from miner.duel.tools import move_call, note_call
from miner.duel.turn import Request
from miner.environments.own.entry import with_place
from miner.games import GOOFSPIEL
from miner.games.goofspiel import prize_value

Choice = Callable[[Request], int]
"""A legal action for a request."""


Note = Callable[[Request], str]
"""A note on the opponent after a game; empty: none."""


def _no_note(request: Request) -> str:
    return ""


class RulePlayer:
    """Plays the choice of `choose`. Equal games with equal notes are played equally.

    It never waits, so that games ask `answer` and need no time limit.

    Args:
        quick: whether a move takes no time to speak of; searches run beside the event loop.
        note: what it writes down after a game; nothing by default.
    """

    def __init__(
        self, name: str, choose: Choice, *, quick: bool = True, note: Note = _no_note
    ) -> None:
        self.name = name
        self.quick = quick
        self.counter: TokenCounter = WordCounter()
        self._choose = choose
        self._note = note

    def answer(self, request: Request) -> Reply:
        """A move, or after a game the note. Raises: `PlayerError` for what the choice raises,
        `ConfigurationError` for a function of the user's."""
        if request.kind == "reflection":
            note = self._note(request)
            return Reply((note_call(note),) if note else ())
        try:
            return Reply((move_call(self._choose(request)),))
        except ConfigurationError:
            raise
        except Exception as error:
            raise PlayerError(f"in {request.table.game.name}: {with_place(error)}") from error

    async def reply(self, request: Request) -> Reply:
        """`answer`, beside the event loop unless it is quick."""
        return self.answer(request) if self.quick else await beside(self.answer, request)

    async def close(self) -> None:
        """Nothing to release."""


def random_move(salt: int) -> Choice:
    """Uniformly random moves; each game and seat has a separate generator."""

    def choose(request: Request) -> int:
        generators, key = request.table.generators, (salt, request.player)
        rng = generators.get(key)
        if rng is None:
            rng = generators[key] = Random(f"{salt} {request.table.seed} {request.player}")
        return request.legal[int(rng.random() * len(request.legal))]

    return choose


def bid_the_prize(request: Request) -> int:
    """Goofspiel's card of the prize's value; the closest one that is left."""
    assert request.table.game is GOOFSPIEL
    return prize_bid(request.table.text(request.player), request.legal)


def bid_above_the_prize(request: Request) -> int:
    """Goofspiel's lowest card above the prize, else the lowest: what beats bids of the prizes."""
    prize, cards = prize_value(request.table.text(request.player)), sorted(request.legal)
    return next((action for action in cards if action + 1 > prize), cards[0])


def prize_bid(state: str, legal: Iterable[int]) -> int:
    """Of the legal actions the card closest to the prize that a state's text shows."""
    prize = prize_value(state)
    return min(legal, key=lambda action: (abs(action + 1 - prize), action))
