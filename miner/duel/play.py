"""One game between two players, by the tournament's rules.

Invariants:
* each turn is one request; a reply without a legal move loses the game, there is no retry;
* a position without a legal action is a draw;
* after the game each player that did not forfeit gets one reflection; nothing that goes wrong in
  it counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from miner.config.contract import DUEL_BOARDS, DUEL_CARDS
from miner.duel.memory import Notes
from miner.duel.outcome import (
    Cause,
    Forfeit,
    GameRecord,
    Ply,
    Usage,
    forfeit_cause,
    game_results,
)
from miner.duel.players.base import Player, Reply, ReplyForfeit
from miner.duel.players.rules import RulePlayer
from miner.duel.table import Table
from miner.duel.turn import Request, Result, carry_out, next_request
from miner.duel.wording import Wording
from miner.games import Game

logger = logging.getLogger(__name__)

LONGEST_CONTENT = 600
"""Characters of a reply's text that a replay keeps."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the tournament fixes around a game.

    Attributes:
        evaluation_seed: the evaluation's seed: draws the games, and stands in requests.
        wording: sentences of requests.
        turn_limit_s: longest turn, and longest reflection, in seconds.
        sizes: decks of Goofspiel and boards of Clobber that are played.
        keep_plies: keep moves, texts and notes for replays.
        reflections: ask for them; without, where no later game sees the notes.
        clock: seconds that pass; for what turns and matches take.
    """

    evaluation_seed: int
    wording: Wording
    turn_limit_s: float = 30.0
    sizes: Collection[int | str] = (*DUEL_CARDS, *DUEL_BOARDS)
    keep_plies: bool = False
    reflections: bool = True
    clock: Clock = time.monotonic


async def play_game(
    game: Game,
    seed: int,
    players: Sequence[Player],
    notes: Sequence[Notes],
    rules: Rules,
    *,
    first_seat: int = 0,
) -> GameRecord:
    """Play the game that `seed` draws.

    Args:
        players, notes: first player's and second's; long-term notes live on in `notes`.
        first_seat: where the first player sits; the record's result is theirs.

    Raises: what a player raises, other than `ReplyForfeit`.
    """
    table = Table(game, seed)
    for held in notes:
        held.begin_game()
    order = (first_seat, 1 - first_seat)
    play = _Play(table, [players[i] for i in order], [notes[i] for i in order], rules)
    await play.turns()
    results = game_results(play.returns)
    for seat in order:
        if rules.reflections and (play.forfeit is None or play.forfeit.player != seat):
            await play.reflection(seat, results[seat])
    return GameRecord(
        game=game.name,
        seed=seed,
        first_seat=first_seat,
        history=table.state.history(),
        returns=play.returns,
        result=results[first_seat],
        forfeit=play.forfeit,
        usage=play.usage,
        plies=play.plies,
    )


class _Play:
    def __init__(
        self, table: Table, players: Sequence[Player], notes: Sequence[Notes], rules: Rules
    ) -> None:
        self._table = table
        self._players = players
        self._notes = notes
        self._rules = rules
        self.usage = (Usage(), Usage())
        self.plies: list[Ply] = []
        self.returns: list[float] = [0.0, 0.0]
        self.forfeit: Forfeit | None = None

    async def turns(self) -> None:
        """Play to the end, a forfeit, or a position without a legal action."""
        table, rules = self._table, self._rules
        while request := next_request(table, self._notes, rules.wording, rules.evaluation_seed):
            seat = request.player
            try:
                reply = await self._ask(request)
            except ReplyForfeit as forfeit:
                self._give_away(seat, Cause(forfeit.cause))
                return
            action = carry_out(request, reply.calls)
            if action is None:
                self._give_away(seat, forfeit_cause(reply), _shown(reply))
                return
            if rules.keep_plies:
                self._keep(seat, action, reply)
            table.apply(action)
        self.returns = table.returns()

    async def reflection(self, seat: int, result: Result) -> None:
        """Let a player revise its notes."""
        held, rules = self._notes[seat], self._rules
        seed = rules.evaluation_seed
        request = Request(self._table, seat, held, rules.wording, result=result, seed=seed)
        try:
            carry_out(request, (await self._ask(request)).calls)
        except Exception as error:
            logger.debug("%s: no reflection: %s", self._players[seat].name, error)

    async def _ask(self, request: Request) -> Reply:
        clock, usage = self._rules.clock, self.usage[request.player]
        player = self._players[request.player]
        begun = clock()
        try:
            if isinstance(player, RulePlayer):
                reply = await player.reply(request)
            else:
                reply = await self._in_time(player, request)
        finally:
            usage.seconds += clock() - begun
            if request.kind == "turn":
                usage.turns += 1
            else:
                usage.reflections += 1
        usage.prompt_tokens += reply.prompt_tokens
        usage.tokens += reply.tokens
        return reply

    async def _in_time(self, player: Player, request: Request) -> Reply:
        limit = self._rules.turn_limit_s
        try:
            async with asyncio.timeout(limit) as timeout:
                return await player.reply(request)
        except TimeoutError as error:
            if not timeout.expired():
                raise  # the player's own
            raise ReplyForfeit(Cause.SLOW, f"no reply within {limit:g} s") from error

    def _give_away(self, seat: int, cause: Cause, reply: str = "") -> None:
        self.forfeit = Forfeit(seat, cause, reply[:LONGEST_CONTENT])
        self.returns = self._table.forfeit_returns(seat)

    def _keep(self, seat: int, action: int, reply: Reply) -> None:
        content = reply.content[:LONGEST_CONTENT] if reply.content else None
        notes = None
        if len(reply.calls) > 1:
            held = self._notes[seat]
            notes = [*held.working.texts, *held.long_term.texts]
        self.plies.append(Ply(seat, action, content, notes))


def _shown(reply: Reply) -> str:
    """A reply with its calls, for the user."""
    calls = (f"{call.name}({call.arguments})" for call in reply.calls)
    return "\n".join(filter(None, [reply.content, *calls]))
