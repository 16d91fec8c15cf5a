"""Turns of games that teachers play, each with the replies that a model of its family could write.

Invariants:
* a demonstration is a function of its task and random numbers: a resumed run has the same ones;
* prompts, tools and notes are those of a duel; a reply is read back as its move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from miner.duel.channel.tasks import duel_of
from miner.duel.memory import LONG_TERM, SLOTS, WORKING, Notes, TokenCounter
from miner.duel.own import Taught
from miner.duel.players.rival import rival_move
from miner.duel.table import Table
from miner.duel.teachers import Seen, taught_values
from miner.duel.tools import shaped
from miner.duel.turn import next_request
from miner.duel.values import values_by_reply
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask, Message, Tool

MOST_TURNS = 6
"""Turns of a game that are taken: gin rummy's sixty would drown Leduc's two."""

ERRORS = (0.0, 0.3, 1.0)
"""Shares of random moves of a side, drawn for each: games that are won, lost and odd."""

RIVALS = 0.3
"""Share of the sides whose moves are all a rival's: some taught moves answer those, and a random
move would hide what shows them."""

_NOTES = (
    "Game {n}: won as Player {p}.",
    "Game {n}: lost as Player {p}.",
    "They open with the highest they have.",
    "They raise in both rounds.",
    "They bid the value of the prize.",
    "They call Liar at {n}-{m}.",
    "They take the upcard whenever it is low.",
    "They leave the corners open.",
)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A turn and the replies to it.

    Attributes:
        game: its name.
        messages, tools: as a model is shown them.
        values: the teacher's chance to win by the text of each legal reply.
    """

    game: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Style:
    """How turns and replies are written.

    Attributes:
        wording: sentences of the requests.
        counter: counts notes, by the tokenizer of the model that learns.
        family: of its calls, one of `calls.FORMS`.
        notes: share of the games in which other games have left notes.
        taught: values the moves.
        named: whether replies name the move before they call the tool.
    """

    wording: Wording
    counter: TokenCounter
    family: str
    notes: float = 1 / 3
    taught: Taught = taught_values
    named: bool = False


def demonstrate(task: EpisodeTask, style: Style, rng: Random) -> list[Demonstration]:
    """Some turns of the task's game, of both seats."""
    turns = list(_turns(task, style, rng))
    return rng.sample(turns, min(MOST_TURNS, len(turns)))


def _turns(task: EpisodeTask, style: Style, rng: Random) -> Iterator[Demonstration]:
    game, seed, _ = duel_of(task)
    table = Table(game, seed)
    errors = [rng.choice(ERRORS) for _ in range(2)]
    rivals = [rng.random() < RIVALS for _ in range(2)]
    notes = [_notes(style, rng) for _ in range(2)]
    while request := next_request(table, notes, style.wording):
        player, legal = request.player, request.legal
        seen = Seen.of(request)
        taught = style.taught(game.name, seen)
        values = values_by_reply(style.family, seen, taught, named=style.named)
        shown = tuple(request.messages), tuple(shaped(request.tools))
        yield Demonstration(game.name, *shown, values)
        if rivals[player]:
            table.apply(rival_move(request))
        elif rng.random() < errors[player]:
            table.apply(rng.choice(legal))
        else:
            table.apply(max(taught, key=lambda action: taught[action]))


def _notes(style: Style, rng: Random) -> Notes:
    """Notes as a match may have left them, in a share of the games; else none."""
    notes = Notes(style.counter)
    if rng.random() >= style.notes:
        return notes
    for area, held in ((WORKING, notes.working), (LONG_TERM, notes.long_term)):
        for slot in rng.sample(range(1, SLOTS[area] + 1), rng.randint(0, 3)):
            text = rng.choice(_NOTES)
            held.edit(
                "rewrite",
                slot,
                text.format(n=rng.randint(1, 9), m=rng.randint(1, 6), p=rng.randint(0, 1)),
            )
    return notes
