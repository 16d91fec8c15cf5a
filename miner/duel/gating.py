"""Plays a candidate against its start for the gate, by the match code that is graded."""

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from miner.duel.match import INTERRUPTED, Limits, MatchResult, play_match
from miner.duel.outcome import POINTS
from miner.duel.play import Rules
from miner.duel.players.base import Player
from miner.duel.players.catalog import make_player
from miner.duel.table import game_seeds
from miner.duel.tournament_files import wording_of
from miner.environments.errors import InfrastructureError
from miner.games import game_named
from miner.publishing.gate import Gate

logger = logging.getLogger(__name__)

PAIRS_AT_ONCE = 10
"""Of a match, within which notes are kept and after which the gate looks."""


async def play_gate(
    candidate: str,
    start: str,
    games: Sequence[str],
    pairs: int,
    number: int = 1,
    seed: int = 42,
    prompts: Path | None = None,
) -> Gate:
    """The gate of two players' matches, at most `pairs` pairs of each game.

    Games take turns, a match of `PAIRS_AT_ONCE` pairs each or of fewer where a stop rule ends it,
    and end as soon as nothing is open. A turn has no time limit: on a slow CPU a model would
    forfeit for its time, not for its play.
    Raises: `ConfigurationError` for players that there are not, `InfrastructureError` for a player
        that fails for good.
    """
    gate, wording = Gate(games, number), wording_of(prompts)
    if pairs * len(games) < (needed := gate.without_forfeits):
        logger.warning(
            "%d pairs of %d games are too few for candidate %d unless the start forfeits: without "
            "forfeits %d decide, which is --pairs %d",
            *(pairs, len(games), number, needed, math.ceil(needed / len(games))),
        )
    async with AsyncExitStack() as stack:
        players = []
        for seat, named in enumerate((candidate, start)):
            players.append(make_player(named, games, seat=seat))
            stack.push_async_callback(players[-1].close)
        seeds, played = game_seeds(seed), dict.fromkeys(games, 0)
        while left := [game for game in games if gate.is_open(game) and played[game] < pairs]:
            for game in filter(gate.is_open, left):
                rules = Rules(next(seeds), wording, turn_limit_s=None)
                most = min(PAIRS_AT_ONCE, pairs - played[game])
                limits = Limits(seconds=float("inf"), pairs=most)
                played[game] += await _play(gate, game, players, rules, limits)
    return gate


async def _play(
    gate: Gate, game: str, players: Sequence[Player], rules: Rules, limits: Limits
) -> int:
    """Play a match for the gate's bets. Returns: its pairs."""
    match = await play_match(game_named(game), players[0], players[1], rules, limits)
    if match.stopped == INTERRUPTED:
        raise asyncio.CancelledError
    if match.failure is not None:
        raise InfrastructureError(f"the gate's match of {game} broke off: {match.failure}")
    found = _pairs(match)
    for score, forfeits in found:
        gate.add(game, score, *forfeits)
    return len(found)


def _pairs(match: MatchResult) -> list[tuple[float, tuple[int, int]]]:
    """Of each seed the first player's mean score, and both sides' forfeits."""
    found = []
    for pair in zip(match.games[::2], match.games[1::2], strict=True):
        score = sum(POINTS[record.result] for record in pair) / 2
        by_side = [sum(record.forfeiter == side for record in pair) for side in (0, 1)]
        found.append((score, (by_side[0], by_side[1])))
    return found
