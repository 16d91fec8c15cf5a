"""One duel as an episode of the policy's turns, each a fresh chat with tools and notes.

Invariants:
* the turns are those of a league's game (`miner.duel.play.Turns`), and so are prompts, tools and
  notes;
* a reply without a legal move ends the episode: lost, and marked as no valid reply;
* an opponent never forfeits and never ends a game by a failure (`TrainingOpponent`);
* a game that ends before the policy's first turn, as one in ten thousand of Clobber's openings
  does, gives its place to the next seed's of the same size;
* an episode is one game without a reflection after it, which later games alone would show; in a
  share of the games the policy has notes of the game before it in a match, which the teacher
  played against the same opponent.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from random import Random

from miner.config.contract import DUEL_CHANNEL
from miner.duel.calls import parse_calls
from miner.duel.channel.opponents import Opponents, TrainingOpponent
from miner.duel.channel.tasks import duel_of, fitting_seeds, size_of
from miner.duel.memory import Notes, TokenCounter, WordCounter
from miner.duel.outcome import POINTS
from miner.duel.play import Rules, Turns
from miner.duel.players.base import Player, PlayerError, Reply
from miner.duel.players.rules import RulePlayer
from miner.duel.table import Table
from miner.duel.teachers import TEACHERS, taught_move, taught_note, teacher_of
from miner.duel.tools import offered_tools, shaped
from miner.duel.turn import Request
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask, InProcess, Observation, Transition
from miner.environments.errors import no_episode
from miner.games import Game

logger = logging.getLogger(__name__)


class DuelSource(InProcess):
    """Opens duels in this process.

    Args:
        opponents: who sits opposite, by a task's `opponent`; they belong to the source.
        wording: sentences of the requests.
        family: of the parser that reads the policy's calls, one of `calls.FORMS`.
        counter: counts the policy's notes, by the tokenizer that it is served with.
        notes: share of the games before which another has left notes, if its teacher writes any.

    Attributes:
        without_notes: games whose teacher has failed.
    """

    name = DUEL_CHANNEL

    def __init__(
        self,
        opponents: Opponents,
        wording: Wording,
        *,
        family: str,
        counter: TokenCounter | None = None,
        notes: float = 0.0,
    ) -> None:
        self.opponents = opponents
        self.wording = wording
        self.family = family
        self.counter: TokenCounter = counter or WordCounter()
        self.notes = notes
        self.without_notes: set[str] = set()

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
        self._turns: Turns | None = None
        self._request: Request | None = None

    async def reset(self, task: EpisodeTask) -> Observation:
        """Start `task`. Raises: `ConfigurationError`, `InfrastructureError`."""
        request: Request | None = None
        self._request = None
        source = self._source
        game, first, self._seat = duel_of(task)
        player = await source.opponents.player(task.opponent)
        seeds = fitting_seeds(game.name, itertools.count(first), (size_of(game.name, first),))
        while request is None:
            seed = next(seeds)
            rival = TrainingOpponent(player, Random(f"fallback {seed} {self._seat}"))
            players: list[Player | None] = [rival, rival]
            players[self._seat] = None
            notes = [Notes(rival.counter), Notes(rival.counter)]
            rules = Rules(seed, source.wording, turn_limit_s=None)
            notes[self._seat] = await self._earlier_notes(game, seed, rival, rules)
            self._turns = Turns(Table(game, seed), players, notes, rules)
            request = await self._turns.play()
        self._request = request
        return Observation(tuple(request.messages), tools=tuple(shaped(request.tools)))

    async def _earlier_notes(self, game: Game, seed: int, opponent: Player, rules: Rules) -> Notes:
        """The policy's notes: none, or those of the same deal from the other seat."""
        source, notes = self._source, Notes(self._source.counter)
        drawn = Random(f"notes {seed} {self._seat}").random()
        noting = game.name in TEACHERS and teacher_of(game.name).notes
        if drawn >= source.notes or not noting:
            return notes
        seat, held = 1 - self._seat, [Notes(opponent.counter), Notes(opponent.counter)]
        players: list[Player | None] = [opponent, opponent]
        players[seat], held[seat] = RulePlayer("teacher", taught_move, note=taught_note), notes
        turns = Turns(Table(game, seed), players, held, rules)
        try:
            await turns.play()
        except PlayerError as error:
            if game.name not in source.without_notes:
                logger.warning("no notes of games before %s: %s", game.name, error)
            source.without_notes.add(game.name)
            return notes
        await turns.reflect(seat)
        return notes

    async def step(self, text: str) -> Transition:
        """Carry out the reply's calls, and let the opponent move. Raises: `EnvironmentFault`."""
        turns, request = self._turns, self._request
        if turns is None or request is None:
            raise no_episode(DUEL_CHANNEL)
        self._request = None
        calls = parse_calls(self._source.family, text, offered_tools(request.tools))
        action = turns.carry_out(request, Reply(calls))
        self._request = request = await turns.play()
        if request is not None:
            shown, tools = tuple(request.messages), tuple(shaped(request.tools))
            return Transition(shown, 0.0, False, action=action, fresh=True, tools=tools)
        score = POINTS[turns.results[self._seat]]
        fault = turns.forfeit.cause.value if turns.forfeit else ""
        return Transition(
            (), score, done=True, score=score, action=action, valid=not fault, fault=fault
        )

    @property
    def table(self) -> Table:
        """The latest game. Raises: `ProtocolError` before the first `reset`."""
        if self._turns is None:
            raise no_episode(DUEL_CHANNEL)
        return self._turns.table

    async def close(self) -> None:
        """Drop the episode (idempotent)."""
        self._request = None
