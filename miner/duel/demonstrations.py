"""Turns of games that teachers play, each with the replies that a model of its family could write.

Some tasks are a pair of games, as a match has them: the same deal, seats swapped, and the notes of
the first in the second. After each of them a teacher that has played without errors writes its note
on the opponent, or replies nothing if it has none, and that is a demonstration too.

Invariants:
* a demonstration is a function of its task and random numbers: a resumed run has the same ones;
* prompts, tools and notes are those of a duel; a reply is read back as its move.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from miner.duel.channel.tasks import duel_of
from miner.duel.memory import LONG_TERM, SLOTS, WORKING, Notes, TokenCounter
from miner.duel.outcome import game_results
from miner.duel.own import Taught
from miner.duel.players.rival import rival_move
from miner.duel.players.rules import bid_above_the_prize
from miner.duel.table import Table
from miner.duel.teachers import Seen, Values, best, taught_note, taught_values, teacher_of
from miner.duel.tools import note_call, shaped
from miner.duel.turn import Request, carry_out, next_request
from miner.duel.values import note_text, values_by_reply
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask, Message, Tool
from miner.games import GOOFSPIEL

MOST_TURNS = 6
"""Turns of a game that are taken: gin rummy's sixty would drown Leduc's two."""

MOST_NOTES = 1
"""Replies among these that write a note: what to note is learned later than what to answer it."""

ERRORS = (0.0, 0.3, 1.0)
"""Shares of random moves of a side, drawn for each: games that are won, lost and odd."""

NOTED_ERRORS = (0.0, 0.0, 1.0)
"""The same in pairs of games: what shows an opponent's rule is play without errors."""

NOTED = 0.6
"""Share of a pair's players that begin with a note on the opponent, right or wrong: the taught
answer holds until a round contradicts it."""

UNNOTED = 1 / 3
"""Share of these pairs in games whose teacher writes no notes: there they teach only that notes of
other content change nothing."""

RIVALS = 0.3
"""Share of the sides whose moves are all a rival's: some taught moves answer those, and a random
move would hide what shows them."""

ABOVE = 0.5
"""Share of Goofspiel's rivals that bid one above the prize, as an answer to those that bid it."""

_OTHER_NOTES = (
    "Game {n}: won as Player {p}.",
    "Game {n}: lost as Player {p}.",
    "They open with the highest they have.",
    "They raise in both rounds.",
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
        values: the teacher's chance to win by the text of each legal reply; 1 of its note.
        is_note: the reply writes one.
    """

    game: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    values: Mapping[str, float]
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """Form in which turns and replies are written.

    Attributes:
        wording: sentences of the requests.
        counter: counts notes, by the tokenizer of the model that learns.
        family: of its calls, one of `calls.FORMS`.
        notes: share of the tasks that are a pair of games with notes.
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
    """Some turns of the task's game or pair of games, of both players; first those with a note."""
    turns = list(_turns(task, style, rng))
    notes = [turn for turn in turns if turn.is_note]
    notes = rng.sample(notes, min(MOST_NOTES, len(notes)))
    moves = [turn for turn in turns if not turn.is_note]
    return [*notes, *rng.sample(moves, min(MOST_TURNS - len(notes), len(moves)))]


class _Side:
    """A player: how it errs, and its notes."""

    def __init__(self, game: str, style: Style, rng: Random, *, noted: bool) -> None:
        self._errors = rng.choice(NOTED_ERRORS if noted else ERRORS)
        self._rival = rng.random() < RIVALS
        self._above = game == GOOFSPIEL.name and rng.random() < ABOVE
        self.notes = _notes(game, style, rng) if noted else Notes(style.counter)

    @property
    def teaches(self) -> bool:
        """No move is random, so that results show how the opponent answers."""
        return self._rival or not self._errors

    def move(self, request: Request, taught: Values, rng: Random) -> int:
        """A legal action."""
        if self._rival:
            return bid_above_the_prize(request) if self._above else rival_move(request)
        if rng.random() < self._errors:
            return rng.choice(request.legal)
        return best(taught)


def _turns(task: EpisodeTask, style: Style, rng: Random) -> Iterator[Demonstration]:
    game, seed, _ = duel_of(task)
    known = teacher_of(game.name).notes
    paired = rng.random() < style.notes * (1 if known else UNNOTED)
    sides = [_Side(game.name, style, rng, noted=paired) for _ in range(2)]
    for seats in [sides, sides[::-1]] if paired else [sides]:
        table = Table(game, seed)
        notes = [side.notes for side in seats]
        while request := next_request(table, notes, style.wording):
            seen = Seen.of(request)
            taught = style.taught(game.name, seen)
            yield _shown(request, values_by_reply(style.family, seen, taught, named=style.named))
            table.apply(seats[request.player].move(request, taught, rng))
        for seat, side in enumerate(seats if paired else ()):
            if side.teaches:
                yield from _reflection(table, seat, side.notes, style)
            side.notes.begin_game()


def _reflection(table: Table, seat: int, notes: Notes, style: Style) -> Iterator[Demonstration]:
    """A teacher's note after a game, which is then among its notes."""
    result = game_results(table.returns())[seat]
    request = Request(table, seat, notes, style.wording, result=result)
    note = taught_note(request)
    yield _shown(request, {note_text(style.family, note): 1.0}, is_note=bool(note))
    if note:
        carry_out(request, [note_call(note)])


def _shown(
    request: Request, values: Mapping[str, float], *, is_note: bool = False
) -> Demonstration:
    shown = tuple(request.messages), tuple(shaped(request.tools))
    return Demonstration(request.table.game.name, *shown, values, is_note)


def _notes(game: str, style: Style, rng: Random) -> Notes:
    """Notes as games may have left them: some on the opponent, some that no teacher would read."""
    notes = Notes(style.counter)
    known = teacher_of(game).notes
    if known and rng.random() < NOTED:
        notes.long_term.edit("rewrite", 1, rng.choice(known))
    for area, held in ((WORKING, notes.working), (LONG_TERM, notes.long_term)):
        for slot in rng.sample(range(2, SLOTS[area] + 1), max(0, rng.randint(-3, 2))):
            text = rng.choice(_OTHER_NOTES)
            held.edit(
                "rewrite",
                slot,
                text.format(n=rng.randint(1, 9), m=rng.randint(1, 6), p=rng.randint(0, 1)),
            )
    return notes
