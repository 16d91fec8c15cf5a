"""One game of two seats, by the tournament's rules: in leagues, and in episodes of training.

Invariants:
* each turn is one request; a reply without a legal move loses the game, there is no retry;
* a position without a legal action is a draw;
* after the game each player that did not forfeit gets one reflection; nothing that goes wrong in
  it counts.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from miner.config.contract import DUEL_BOARDS, DUEL_CARDS, TURN_SECONDS
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
from miner.encodable import encodable
from miner.games import Game

logger = logging.getLogger(__name__)

LONGEST_CONTENT = 600
"""Characters of a reply's text that a replay keeps."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of the tournament around a game.

    Attributes:
        evaluation_seed: the evaluation's seed: draws the games, and is in requests.
        wording: sentences of requests.
        turn_limit_s: longest turn, and longest reflection, in seconds; None: not limited.
        sizes: decks of Goofspiel and boards of Clobber that are played.
        keep_plies: keep moves, texts and notes for replays.
        clock: seconds that pass; for what turns and matches take.
    """

    evaluation_seed: int
    wording: Wording
    turn_limit_s: float | None = TURN_SECONDS
    sizes: Collection[int | str] = (*DUEL_CARDS, *DUEL_BOARDS)
    keep_plies: bool = False
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
        first_seat: seat of the first player, whose result the record has.

    Raises: what a player raises, other than `ReplyForfeit`.
    """
    for held in notes:
        held.begin_game()
    order = (first_seat, 1 - first_seat)
    table = Table(game, seed)
    turns = Turns(table, [players[i] for i in order], [notes[i] for i in order], rules)
    await turns.play()
    results = turns.results
    for seat in order:
        await turns.reflect(seat)
    return GameRecord(
        game=game.name,
        seed=seed,
        first_seat=first_seat,
        history=table.state.history(),
        returns=turns.returns,
        result=results[first_seat],
        forfeit=turns.forfeit,
        usage=turns.usage,
        plies=turns.plies,
    )


class Turns:
    """The turns of one game: asks its players in turn and carries out their replies.

    Args:
        players: by seat; None for a seat that the caller plays, as a policy that learns is.
        notes: by seat.

    Attributes:
        table: the game.
        forfeit: the forfeit that ended the game; None without one.
        usage: by seat.
        plies: the moves, where the rules keep them.
    """

    def __init__(
        self,
        table: Table,
        players: Sequence[Player | None],
        notes: Sequence[Notes],
        rules: Rules,
    ) -> None:
        self.table = table
        self._players = players
        self._notes = notes
        self._rules = rules
        self.usage = (Usage(), Usage())
        self.plies: list[Ply] = []
        self.forfeit: Forfeit | None = None

    @property
    def returns(self) -> list[float]:
        """Of both seats, by the forfeit if there was one; zeros, a draw, where no move is legal."""
        if self.forfeit is not None:
            return self.table.forfeit_returns(self.forfeit.player)
        return self.table.returns()

    @property
    def results(self) -> list[Result]:
        """Of both seats."""
        return game_results(self.returns)

    async def play(self) -> Request | None:
        """Play until the game is over, or a seat without a player has to move.

        Returns: that seat's request, to be answered with `carry_out`; None if the game is over.
        Raises: what a player raises, other than `ReplyForfeit`.
        """
        rules = self._rules
        while self.forfeit is None:
            request = next_request(self.table, self._notes, rules.wording, rules.evaluation_seed)
            player = self._players[request.player] if request else None
            if request is None or player is None:
                return request
            try:
                reply = await self._ask(player, request)
            except ReplyForfeit as forfeit:
                self.forfeit = Forfeit(request.player, Cause(forfeit.cause))
            else:
                self.carry_out(request, reply)
        return None

    def carry_out(self, request: Request, reply: Reply) -> int | None:
        """Carry out a reply's calls.

        Returns: the action played; None where the reply has no legal move, which forfeits the game.
        """
        action = carry_out(request, reply.calls)
        if action is None:
            cause, shown = forfeit_cause(reply), _shown(reply)[:LONGEST_CONTENT]
            self.forfeit = Forfeit(request.player, cause, shown)
            return None
        if self._rules.keep_plies:
            self._keep(request.player, action, reply)
        self.table.apply(action)
        return action

    async def reflect(self, seat: int) -> None:
        """Let a seat's player revise its notes, unless it has forfeited."""
        player, held, rules = self._players[seat], self._notes[seat], self._rules
        if player is None or (self.forfeit is not None and self.forfeit.player == seat):
            return
        result, seed = self.results[seat], rules.evaluation_seed
        request = Request(self.table, seat, held, rules.wording, result=result, seed=seed)
        try:
            carry_out(request, (await self._ask(player, request)).calls)
        except Exception as error:
            logger.debug("%s: no reflection: %s", player.name, error)

    async def _ask(self, player: Player, request: Request) -> Reply:
        clock, usage = self._rules.clock, self.usage[request.player]
        limit = None if isinstance(player, RulePlayer) else self._rules.turn_limit_s
        begun = clock()
        try:
            async with asyncio.timeout(limit) as timeout:
                reply = await player.reply(request)
        except TimeoutError as error:
            if not timeout.expired():
                raise  # the player's own
            raise ReplyForfeit(Cause.SLOW, f"no reply within {limit:g} s") from error
        finally:
            usage.seconds += clock() - begun
            if request.kind == "turn":
                usage.turns += 1
            else:
                usage.reflections += 1
        usage.prompt_tokens += reply.prompt_tokens
        usage.tokens += reply.tokens
        return reply

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
    return encodable("\n".join(filter(None, [reply.content, *calls])))
