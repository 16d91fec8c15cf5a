"""A game: all that servers, duels, rewards and replays know of one, in one object."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import fsum
from random import Random
from typing import Any

import pyspiel

RANDOM = "random"
"""Name of the policy, and of the opponent, whose legal actions are uniformly random."""

Parameters = dict[str, int | str | bool]

Scene = dict[str, Any]
"""A position as plain data that a page draws: a board, rows of cards, dice or chips, and facts."""

BLOCK = 100_000_000
"""Task ids of a game, which has one block of them."""


class StateTextError(ValueError):
    """A text that should hold a game's state block does not."""


Rule = Callable[[str, int, Random], int]
"""Text with a server's state block, the agent's seat, generator -> action id.

Raises: `StateTextError` when the text holds no state block.
"""


@dataclass(frozen=True, slots=True)
class ReferenceScore:
    """A policy's expected score against a uniformly random opponent.

    Attributes:
        policy: the rule of `Game.policies` that scores so; empty for all others.
        overall: over all sizes of the game, equally often.
        by_deck_size: for each.
    """

    name: str
    overall: float
    by_deck_size: Mapping[int, float]
    policy: str = ""

    def mean(self, sizes: Collection[int] = ()) -> float:
        """Mean over `sizes`, each equally often; over all sizes when empty."""
        if not sizes or set(sizes) == self.by_deck_size.keys():
            return self.overall
        return fsum(self.by_deck_size[size] for size in sizes) / len(sizes)


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of the agent, apart from any wording.

    Attributes:
        state_text: the state block, verbatim.
        seat: the player that the agent is.
        labels: label of each legal action id, ascending by id.
    """

    state_text: str
    seat: int
    labels: Mapping[int, str]


def observation(state: pyspiel.State, player: int) -> str:
    """OpenSpiel's own text of what `player` sees."""
    return str(state.observation_string(player))


def action_text(state: pyspiel.State, player: int, action: int) -> str:
    """OpenSpiel's own name of an action."""
    return str(state.action_to_string(player, action))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # one object each: equal if the same
class Game:
    """One of the tournament's games, on servers and in duels.

    Attributes:
        name: OpenSpiel's short name, and the tournament's.
        block: number of its block of task ids on servers.
        rules: in our own words, for prompts where no server's own are known.
        draw: scene of a state after an action (None: after none), seen from both sides.
        server_parameters, duel_parameters: OpenSpiel's, for a configuration number.
        server_text, duel_text: the state block that a player is shown.
        server_label: the servers' name of a player's action; -1 is chance.
        search: simulations a move and rollouts a leaf of the servers' "mcts" opponent.
        random_opening: duels begin with a few random moves, so that deterministic players play
            more than one game.
        sizes: deck sizes of the servers' game, by task id; empty where it has one.
        duel_sizes: the same of duels, by configuration number: cards or boards.
        policies: simple rules for the servers' game, the best one first; they measure, and nothing
            is trained on them.
        references: known scores on servers, ascending.
        read_turn: the turn that a server's text puts to a seat, None where the text shows none;
            raises `StateTextError` for a block that contradicts itself. None where a text cannot
            be read back.
    """

    name: str
    block: int
    rules: str
    draw: Callable[[pyspiel.State, int | None], Scene]
    server_parameters: Callable[[int], Parameters]
    duel_parameters: Callable[[int], Parameters]
    server_text: Callable[[pyspiel.State, int], str] = observation
    duel_text: Callable[[pyspiel.State, int], str] = observation
    server_label: Callable[[pyspiel.State, int, int], str] = action_text
    search: tuple[int, int] = (0, 0)
    random_opening: bool = False
    sizes: tuple[int, ...] = ()
    duel_sizes: tuple[int | str, ...] = ()
    policies: Mapping[str, Rule] = field(default_factory=dict)
    references: tuple[ReferenceScore, ...] = ()
    read_turn: Callable[[str, int], Turn | None] | None = None

    @property
    def task_ids(self) -> tuple[int, int]:
        """Smallest and largest task id."""
        return self.block * BLOCK, (self.block + 1) * BLOCK - 1

    def size(self, task_id: int) -> int | None:
        """Deck size of a server's game; None where there is one for all."""
        return self.sizes[task_id % len(self.sizes)] if self.sizes else None

    def load_server(self, task_id: int) -> pyspiel.Game:
        """OpenSpiel's game of a task id; equal parameters share one object, as in duels."""
        return _load(self.name, tuple(self.server_parameters(task_id % BLOCK).items()))

    def load_by_turns(self, task_id: int) -> pyspiel.Game:
        """The same with joint moves one after the other, seat 0 first."""
        parameters = self.server_parameters(task_id % BLOCK)
        return _load_turn_based(self.name, tuple(parameters.items()))

    def load_duel(self, configuration: int) -> pyspiel.Game:
        """The same for a duel's configuration number.

        A game without turns is wrapped, so that bids follow each other.
        """
        return _load_turn_based(self.name, tuple(self.duel_parameters(configuration).items()))


@lru_cache(maxsize=256)
def _load(name: str, parameters: tuple[tuple[str, int | str | bool], ...]) -> pyspiel.Game:
    return pyspiel.load_game(name, dict(parameters))


@lru_cache(maxsize=256)
def _load_turn_based(
    name: str, parameters: tuple[tuple[str, int | str | bool], ...]
) -> pyspiel.Game:
    return pyspiel.load_game_as_turn_based(name, dict(parameters))
