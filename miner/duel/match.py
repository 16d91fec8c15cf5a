"""A match: pairs of games with seats swapped, until the clock or one of the stop rules ends it.

Invariants:
* games of a match follow each other, since notes go from each to the next;
* the rules are looked at after a pair, never within one;
* nothing is awarded for games that were not played.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from miner.config.contract import GAME_REPLAYS, LOSSES_IN_A_ROW, MATCH_SECONDS, MOST_FORFEITS
from miner.config.errors import ConfigurationError
from miner.duel.channel.tasks import fitting_seeds
from miner.duel.memory import Notes
from miner.duel.outcome import GameRecord
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Player, UnreachableError
from miner.duel.table import game_seeds
from miner.duel.turn import Result
from miner.games import Game

logger = logging.getLogger(__name__)

RECOVERY_S = 10.0

INTERRUPTED = "interrupted"
"""Reason for the end of a cancelled match; it keeps the games that were over."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a match.

    Attributes:
        seconds: time after which no further pair begins.
        pairs: most pairs of games; None: the clock alone decides, as in the tournament.
        sleep: waits for a server that is away.
    """

    seconds: float = MATCH_SECONDS
    pairs: int | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(slots=True)
class MatchResult:
    """A match as it was played.

    Attributes:
        first, second: names of the players.
        stopped: reason for the end, in words.
        failure: cause of an end without a decision; a league then leaves all of it out.
        refused: true if that is for a user to correct, such as a function of theirs that raises.
        seconds: duration in seconds.
    """

    game: str
    first: str
    second: str
    games: list[GameRecord] = field(default_factory=list)
    stopped: str = ""
    failure: str | None = None
    refused: bool = False
    seconds: float = 0.0

    def count(self, result: Result) -> int:
        """Games with this result for the first player."""
        return sum(record.result == result for record in self.games)


async def play_match(
    game: Game,
    first: Player,
    second: Player,
    rules: Rules,
    limits: Limits,
    *,
    seeds: Iterable[int] | None = None,
    on_game: Callable[[GameRecord], None] = lambda record: None,
) -> MatchResult:
    """Play a match. A player that fails for good ends it and is named in `failure`.

    Cancelled, it returns what was played.

    Args:
        seeds: of its pairs; None: all that the rules draw.
    """
    result = MatchResult(game.name, first.name, second.name)
    players, notes = (first, second), (Notes(first.counter), Notes(second.counter))

    async def play(seed: int, first_seat: int) -> GameRecord:
        for _ in range(GAME_REPLAYS):
            try:
                return await play_game(game, seed, players, notes, rules, first_seat=first_seat)
            except UnreachableError as error:
                logger.warning("%s, seed %d is played again: %s", game.name, seed, error)
                await limits.sleep(RECOVERY_S)
        return await play_game(game, seed, players, notes, rules, first_seat=first_seat)

    begun = rules.clock()
    drawn = fitting_seeds(game.name, game_seeds(rules.evaluation_seed), rules.sizes)
    for number, seed in enumerate(drawn if seeds is None else seeds, 1):
        try:
            for first_seat in (0, 1):
                await asyncio.sleep(0)  # rule players never wait: let an interrupt in
                result.games.append(await play(seed, first_seat))
                on_game(result.games[-1])
        except asyncio.CancelledError:
            result.stopped = INTERRUPTED
        except Exception as error:
            result.refused = isinstance(error, ConfigurationError)
            result.failure = str(error) if result.refused else f"{type(error).__name__}: {error}"
            result.stopped = "broke off"
            logger.warning("%s, %s against %s: %s", game.name, first.name, second.name, error)
        result.seconds = rules.clock() - begun
        result.stopped = result.stopped or _stop(result, number, limits)
        if result.stopped:
            break
    return result


def _stop(result: MatchResult, pairs: int, limits: Limits) -> str:
    """Reason to end the match now, or an empty text."""
    if result.seconds >= limits.seconds:
        return f"time was up after {limits.seconds / 60:g} min"
    for number, name in enumerate((result.first, result.second)):
        forfeits = sum(record.forfeiter == number for record in result.games)
        if forfeits >= MOST_FORFEITS:
            return f"{name} forfeited {forfeits} games"
    most = LOSSES_IN_A_ROW * (1 if len(result.games) <= LOSSES_IN_A_ROW else 2)
    for name, lost in ((result.first, "loss"), (result.second, "win")):
        backwards = enumerate(reversed(result.games))
        in_a_row = next((n for n, game in backwards if game.result != lost), len(result.games))
        if in_a_row >= most:
            return f"{name} lost {in_a_row} games in a row"
    if limits.pairs is not None and pairs >= limits.pairs:
        return f"{2 * pairs} games were played"
    return ""
