"""The duels' critic: a value for each legal reply to a prompt, by the teacher of its game.

With credit over all legal moves the teachers label the states that the policy itself reaches:
DAgger (Ross, Gordon and Bagnell 2011, arXiv 1011.0686) with soft labels and without rounds.
"""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache

from miner.config.errors import ConfigurationError
from miner.duel.calls import write_calls
from miner.duel.channel.tasks import duel_of
from miner.duel.own import Taught
from miner.duel.teachers import Seen, Values, taught_values
from miner.duel.tools import move_call, note_call
from miner.environments.base import EpisodeTask, Message
from miner.environments.own.entry import with_place

logger = logging.getLogger(__name__)

_SEAT = re.compile(r"^\[P[01]\]")


class DuelValues:
    """Chances to win by legal reply.

    Args:
        family: of the model's calls, one of `calls.FORMS`.
        taught: values the moves.
        named: true if replies name the move before they call the tool.
    """

    def __init__(self, family: str, taught: Taught = taught_values, *, named: bool = False) -> None:
        self._family = family
        self._taught = taught
        self._named = named
        self._failed: set[str] = set()

    def values(self, shown: Sequence[Message], task: EpisodeTask) -> dict[str, float] | None:
        """Values of all replies, none where the teacher fails; the seat and the notes are read off
        the messages. Raises: `ConfigurationError` of the user's teacher."""
        seen = Seen.read(shown[-1]["content"], shown[0]["content"])
        if seen is None:
            return None
        game = duel_of(task)[0].name
        try:
            taught = self._taught(game, seen)
        except ConfigurationError:
            raise
        except Exception as error:
            if game not in self._failed:
                logger.warning("%s: no credit for a turn: %s", task, with_place(error))
            self._failed.add(game)
            return {}
        return values_by_reply(self._family, seen, taught, named=self._named)


def values_by_reply(
    family: str, seen: Seen, values: Values, *, named: bool = False
) -> dict[str, float]:
    """Values by the text of each legal reply in a family's form; see `reply_text`."""
    return {
        reply_text(family, action, seen.actions[action] if named else ""): value
        for action, value in values.items()
    }


@lru_cache(4096)
def reply_text(family: str, action: int, label: str = "") -> str:
    """A reply that makes a move, behind the words that the prompt lists it with.

    The words come first because a language model copies what it has read before it can compute an
    id: it chooses the card, and then reads off the card's number.

    Args:
        label: as the prompt has it, `[P0]Bid: 3`; the seat is left out. Empty: no words.
    """
    return write_calls(family, [move_call(action)], _SEAT.sub("", label).strip())


@lru_cache(64)
def note_text(family: str, note: str) -> str:
    """A reply after a game that writes a note on the opponent; an empty one for an empty note."""
    return write_calls(family, [note_call(note)] if note else [])
