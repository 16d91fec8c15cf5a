"""A player's score against another in one game, over short matches in which notes are kept."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from miner.duel.channel.tasks import Size, size_of
from miner.duel.memory import Notes
from miner.duel.outcome import POINTS, GameRecord
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Player
from miner.duel.players.catalog import make_player
from miner.duel.table import game_seeds
from miner.duel.wording import own_wording
from miner.evaluation.statistics import Estimate, mean_score
from miner.games import game_named

EVALUATION_SEED = 42

MATCH_PAIRS = 5
"""Pairs of a match; the tournament's clock allows more."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One comparison to play.

    Attributes:
        game: its name.
        opponent: as the command line names players.
        size: Goofspiel's cards or Clobber's board; None for all.
    """

    game: str
    opponent: str
    size: Size | None = None

    @property
    def name(self) -> str:
        """The game, with its size."""
        return f"{self.game}-{self.size}" if self.size else self.game


MEETINGS = (
    Meeting("leduc_poker", "random"),
    Meeting("leduc_poker", "cfr"),
    Meeting("leduc_poker", "rival"),
    Meeting("goofspiel", "random", 5),
    Meeting("goofspiel", "bid", 5),
    Meeting("goofspiel", "random", 8),
    Meeting("goofspiel", "bid", 8),
    Meeting("liars_dice", "random"),
    Meeting("liars_dice", "rival"),
    Meeting("clobber", "random", "4x5"),
)


@dataclass(frozen=True, slots=True)
class Scored:
    """The first player's score, and the games that it forfeited."""

    score: Estimate
    forfeits: int


async def score(player: Player, meeting: Meeting, pairs: int) -> Scored:
    """Both seats of each of the tournament's first `pairs` seeds; all matches at once.

    The interval takes pairs for independent, although those of a match share notes.

    Raises: what a player raises.
    """
    game, opponent = game_named(meeting.game), make_player(meeting.opponent, [meeting.game], seat=1)
    rules = Rules(EVALUATION_SEED, own_wording(), turn_limit_s=None)

    async def play(seeds: Sequence[int]) -> list[GameRecord]:
        players, notes = (player, opponent), (Notes(player.counter), Notes(opponent.counter))
        return [
            await play_game(game, seed, players, notes, rules, first_seat=seat)
            for seed in seeds
            for seat in (0, 1)
        ]

    drawn = game_seeds(EVALUATION_SEED)
    fitting = (seed for seed in drawn if meeting.size in (None, size_of(meeting.game, seed)))
    seeds = list(islice(fitting, pairs))
    matches = await asyncio.gather(
        *(play(seeds[first : first + MATCH_PAIRS]) for first in range(0, pairs, MATCH_PAIRS))
    )
    records = [record for match in matches for record in match]
    return Scored(
        mean_score(
            [POINTS[record.result] for record in records], [record.seed for record in records]
        ),
        sum(record.forfeiter == 0 for record in records),
    )
