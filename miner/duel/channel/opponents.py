"""Opponents of an episode: rules and searches, a folder's model, the newest published one.

Invariants:
* equal games are played equally, so that members of a group meet the same opponent;
* a player is made once and shared by all episodes; models are loaded when first asked;
* one published model is held at a time: the run publishes while no episode is played.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from random import Random

from miner.config.contract import DUEL_CHANNEL
from miner.config.errors import ConfigurationError
from miner.duel.channel.tasks import BASE, SNAPSHOT
from miner.duel.outcome import Cause
from miner.duel.players.base import Player, PlayerError, Reply, ReplyForfeit, UnreachableError
from miner.duel.players.catalog import make_player, named
from miner.duel.tools import move_call
from miner.duel.turn import Request, legal_move
from miner.environments.errors import InfrastructureError
from miner.publishing.output_path import published_step


class Opponents:
    """Players by what settings call them.

    Args:
        games: names of the games they have to play.
        base: the model that is trained or looked at, for `BASE`; None without one.
        published: where the run publishes, for `SNAPSHOT`; None where there is no run.
        make: makes a player of a specification.
    """

    def __init__(
        self,
        games: Collection[str],
        base: Path | None = None,
        published: Path | None = None,
        make: Callable[[str, Collection[str]], Player] = make_player,
    ) -> None:
        self._games = games
        self._base = base
        self._published = published
        self._make = make
        self._players: dict[str, tuple[int | None, Player]] = {}

    async def player(self, specification: str) -> Player:
        """The player of this name; where the run has published another model, that one, and the
        one before it is released.

        Raises: `ConfigurationError` for an unknown one.
        """
        described, version = specification, None
        if specification == BASE:
            described = f"{BASE}={self._base}"
        elif specification == SNAPSHOT:
            described = f"{SNAPSHOT}={self._published}"
            version = published_step(self._published) if self._published else None
        held = self._players.get(described)
        if held is not None and held[0] == version:
            return held[1]
        if held is not None:
            del self._players[described]
            await held[1].close()
        return self._made(described, version)

    def _made(self, described: str, version: int | None = None) -> Player:
        if described not in self._players:
            self._players[described] = version, self._make(described, self._games)
        return self._players[described][1]

    def check(self, specification: str) -> None:
        """Check that there is such a player without loading it. Raises: `ConfigurationError`."""
        if specification == SNAPSHOT:
            if self._published is None:
                raise ConfigurationError(
                    f"{SNAPSHOT} is the model that a training run has published: name its folder"
                )
        elif specification == BASE:
            if self._base is None:
                raise ConfigurationError(f"{BASE} is the model that plays: name its folder")
        elif not is_model(specification):
            self._made(specification)

    async def close(self) -> None:
        """Release all players."""
        for _, player in self._players.values():
            await player.close()


class TrainingOpponent:
    """An opponent that never forfeits: where it names no legal move it plays a random one.

    A game that it gave away would reward the policy for nothing.

    Args:
        player: answers; it belongs to the caller.
        rng: draws the random moves.
    """

    def __init__(self, player: Player, rng: Random) -> None:
        self.name = player.name
        self.counter = player.counter
        self._player = player
        self._rng = rng

    async def reply(self, request: Request) -> Reply:
        """The player's reply, with a legal move. Raises: `InfrastructureError`."""
        try:
            reply = await self._player.reply(request)
        except ReplyForfeit as error:
            if error.cause == Cause.HTTP_SLOW:  # where training runs, no fault of the player's
                raise self._failed(error) from error
            reply = Reply()
        except (PlayerError, UnreachableError) as error:
            raise self._failed(error) from error
        if legal_move(request, reply.calls) is not None:
            return reply
        return replace(reply, calls=(*reply.calls, move_call(self._rng.choice(request.legal))))

    def _failed(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(f"the opponent {self.name} failed: {error}", server=DUEL_CHANNEL)

    async def close(self) -> None:
        """The player belongs to the caller."""


def is_model(specification: str) -> bool:
    """Return whether this opponent is a model that is loaded into the process that plays."""
    return specification in (BASE, SNAPSHOT) or Path(named(specification)[1]).is_dir()
