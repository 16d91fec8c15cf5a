"""Tokens that a turn can take, for which a limit needs room."""

from collections.abc import Iterable, Iterator
from random import Random

from miner.duel.channel.tasks import duel_of
from miner.duel.memory import SLOT_TOKENS, SLOTS, Notes, WordCounter
from miner.duel.table import Table
from miner.duel.tools import shaped
from miner.duel.turn import next_request
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask, Message, Tool
from miner.rollout.renderer import ChatRenderer

NOTES_TOKENS = SLOT_TOKENS * sum(SLOTS.values())

_Chat = tuple[list[Message], list[Tool]]


def turn_tokens(
    tasks: Iterable[EpisodeTask], wording: Wording, renderer: ChatRenderer
) -> dict[str, int]:
    """Tokens of each game's longest prompt in `tasks` played at random, notes as full as can be.

    Of each game the turn with the most characters is tokenised.
    """
    longest: dict[str, tuple[int, _Chat]] = {}
    for task in tasks:
        for messages, tools in _chats(task, wording):
            size = len(str(tools)) + sum(len(message["content"]) for message in messages)
            if size > longest.get(task.environment, (0, None))[0]:
                longest[task.environment] = (size, (messages, tools))
    return {
        game: NOTES_TOKENS + len(renderer.encode(renderer.render(*chat)))
        for game, (_, chat) in longest.items()
    }


def _chats(task: EpisodeTask, wording: Wording) -> Iterator[_Chat]:
    """Requests to the task's player in a game of random moves."""
    game, seed, seat = duel_of(task)
    table, rng, notes = Table(game, seed), Random(seed), [Notes(WordCounter())] * 2
    while request := next_request(table, notes, wording):
        if request.player == seat:
            yield request.messages, shaped(request.tools)
        table.apply(rng.choice(request.legal))
