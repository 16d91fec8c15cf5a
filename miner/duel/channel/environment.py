"""One duel as an episode of the policy's turns, each a fresh chat with tools and notes.

Invariants:
* prompts, tools, notes and the reading of calls are those of a duel (`miner.duel.turn`, `calls`);
* a reply without a legal move ends the episode: lost, and marked as no valid reply;
* an opponent that names no legal move plays a random one: giving up would teach nothing;
* an opponent that fails is a fault of infrastructure, never a score;
* a game that ends before the policy's first turn, as one in ten thousand of Clobber's openings
  does, gives its place to the next seed's of the same size;
* an episode is one game; the reflection after it is not asked for, since what it is worth shows in
  later games only.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from random import Random

from miner.config.contract import DUEL_CHANNEL
from miner.duel.calls import parse_calls
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import duel_of, fitting_seeds, size_of
from miner.duel.memory import Notes, TokenCounter, WordCounter
from miner.duel.outcome import POINTS, forfeit_cause, game_results
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit, UnreachableError
from miner.duel.table import Table
from miner.duel.tools import offered_tools, shaped
from miner.duel.turn import Request, carry_out, next_request
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask, InProcess, Observation, Transition
from miner.environments.errors import InfrastructureError, ProtocolError


class DuelSource(InProcess):
    """Opens duels in this process.

    Args:
        opponents: who sits opposite, by a task's `opponent`; they belong to the source.
        wording: sentences of the requests.
        family: of the parser that reads the policy's calls, one of `calls.FORMS`.
        counter: counts the policy's notes, by the tokenizer that it is served with.
    """

    name = DUEL_CHANNEL

    def __init__(
        self,
        opponents: Opponents,
        wording: Wording,
        *,
        family: str,
        counter: TokenCounter | None = None,
    ) -> None:
        self.opponents = opponents
        self.wording = wording
        self.family = family
        self.counter: TokenCounter = counter or WordCounter()

    def open(self, avoid: Collection[str] = ()) -> Duel:
        """A fresh environment; `avoid` cannot apply to a channel without servers."""
        return Duel(self)

    async def close(self) -> None:
        """Release the opponents."""
        await self.opponents.close()


class Duel:
    """One episode at a time."""

    server = DUEL_CHANNEL

    def __init__(self, source: DuelSource) -> None:
        self._source = source
        self._table: Table | None = None
        self._request: Request | None = None

    async def reset(self, task: EpisodeTask) -> Observation:
        """Start `task`. Raises: `ConfigurationError`, `InfrastructureError`."""
        game, first, self._seat = duel_of(task)
        self._rival = await self._source.opponents.player(task.opponent)
        self._notes = [Notes(self._source.counter), Notes(self._source.counter)]
        self._notes[1 - self._seat] = Notes(self._rival.counter)
        request = None
        seeds = fitting_seeds(game.name, itertools.count(first), (size_of(game.name, first),))
        while request is None:
            self._table = Table(game, next(seeds))
            self._fallback = Random(f"fallback {self._table.seed} {self._seat}")
            request = await self._until_asked(self._table)
        return Observation(tuple(request.messages), tools=tuple(shaped(request.tools)))

    async def step(self, text: str) -> Transition:
        """Carry out the reply's calls, and let the opponent move. Raises: `EnvironmentFault`."""
        table, request = self._table, self._request
        if table is None or request is None:
            raise _not_open()
        reply = Reply(parse_calls(self._source.family, text, offered_tools(request.tools)))
        action = carry_out(request, reply.calls)
        if action is None:
            await self.close()
            cause = forfeit_cause(reply).value
            return Transition((), 0.0, done=True, score=0.0, valid=False, fault=cause)
        table.apply(action)
        request = await self._until_asked(table)
        if request is not None:
            shown, tools = tuple(request.messages), tuple(shaped(request.tools))
            return Transition(shown, 0.0, False, action=action, fresh=True, tools=tools)
        score = POINTS[game_results(table.returns())[self._seat]]
        return Transition((), score, done=True, score=score, action=action)

    @property
    def table(self) -> Table:
        """The latest game. Raises: `ProtocolError` before the first `reset`."""
        if self._table is None:
            raise _not_open()
        return self._table

    async def close(self) -> None:
        """Drop the episode (idempotent)."""
        self._request = None

    async def _until_asked(self, table: Table) -> Request | None:
        """Let the opponent move until it is the policy's turn; None when the game is over."""
        self._request = None
        while request := next_request(table, self._notes, self._source.wording):
            if request.player == self._seat:
                break
            table.apply(await self._opposite_move(request))
        self._request = request
        return request

    async def _opposite_move(self, request: Request) -> int:
        try:
            move = carry_out(request, (await self._rival.reply(request)).calls)
        except ReplyForfeit:
            move = None
        except (PlayerError, UnreachableError) as error:
            raise InfrastructureError(
                f"the opponent {self._rival.name} failed: {error}", server=DUEL_CHANNEL
            ) from error
        return self._fallback.choice(request.legal) if move is None else move


def _not_open() -> ProtocolError:
    return ProtocolError("no episode is open: call reset() first", server=DUEL_CHANNEL)
