"""Creation of games and moves: inline, or in a thread when the opponent searches.

Invariants:
* a session is used by one thread at a time; its owner waits for one move before the next;
* a search never keeps the process alive (OpenSpiel's search cannot be interrupted).
"""

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from miner.beside import beside
from miner.config.contract import GAMES
from miner.config.errors import ConfigurationError
from miner.environments.games import GameSession
from miner.environments.games.opponents import Stream
from miner.environments.games.session import CardApplication
from miner.games import game_named, game_of
from mock_env_server.quirks import Quirk
from mock_env_server.settings import ServerSettings

T = TypeVar("T")
SEARCHES_AT_ONCE = 2
_MAX_RANDOM_SEED = 2**32 - 200


class GameRoom:
    """Opens games and plays moves in them, never blocking the event loop for a search."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._searchers = asyncio.Semaphore(SEARCHES_AT_ONCE)

    async def open(
        self,
        task_id: int,
        seed: int,
        opponent: object,
        *,
        stream: Stream,
        card_application: CardApplication,
    ) -> GameSession:
        """A game at the agent's first turn.

        Raises: ValueError for a game, opponent or seed that does not exist.
        """

        def make() -> GameSession:
            return GameSession(
                task_id,
                seed,
                opponent=str(opponent),
                stream=stream,
                card_application=card_application,
            )

        try:
            searches = opponent == "mcts" and any(game_of(task_id).search)
            return await self._run(searches, make)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error

    async def play(self, session: GameSession, action: int) -> None:
        """Play the agent's legal `action` and everything up to its next turn."""
        searches = session.opponent == "mcts" and not session.simultaneous
        await self._run(searches, session.play, action)

    async def _run(self, searches: bool, function: Callable[..., T], *args: object) -> T:
        if not searches or Quirk.BLOCK in self._settings.quirks:
            return function(*args)
        async with self._searchers:
            return await beside(function, *args)


def random_task_id() -> int:
    """A task id of any of the games, as a request without one gets."""
    return random.randint(*game_named(random.choice(GAMES)).task_ids)


def random_seed() -> int:
    """A seed that is valid in both modes."""
    return random.randint(0, _MAX_RANDOM_SEED)
