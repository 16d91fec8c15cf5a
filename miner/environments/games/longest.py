"""Longest conversations of games, for which a limit in tokens needs room."""

from collections.abc import Iterable
from random import Random

from miner.environments.base import EpisodeTask, Message
from miner.environments.games.dialogue import GradedDialogue
from miner.environments.games.prompts import MAX_ATTEMPTS, PromptFormat
from miner.environments.games.session import GameSession

NO_ACTION = "?"
RETRIES = MAX_ATTEMPTS - 1


def longest_conversation(tasks: Iterable[EpisodeTask]) -> list[Message]:
    """The longest conversation, in characters, of `tasks` played at random, in our own wording.

    Every turn is asked as often as it can be, since only the last reply names an action.
    """
    return max((_conversation(task, RETRIES) for task in tasks), key=_characters)


def shortest_conversation(tasks: Iterable[EpisodeTask]) -> list[Message]:
    """The shortest one, where each turn is asked once."""
    return min((_conversation(task, 0) for task in tasks), key=_characters)


def _characters(messages: list[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def _conversation(task: EpisodeTask, retries: int) -> list[Message]:
    session = GameSession(task.task_id, task.seed)
    dialogue = GradedDialogue(PromptFormat.own(task.environment))
    rng = Random(task.seed)
    while not session.done:
        turn = session.turn()
        dialogue.ask(turn)
        for _ in range(retries):
            dialogue.reply(NO_ACTION)
        action = rng.choice(sorted(turn.labels))
        dialogue.reply(str(action))
        session.play(action)
    return dialogue.conversation
