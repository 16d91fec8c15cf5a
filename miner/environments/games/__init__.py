"""The games: seeded OpenSpiel sessions, their text formats, the grader's parser and dialogue."""

from miner.environments.games.catalog import game_name_of, task_id_range
from miner.environments.games.dialogue import GradedDialogue, Verdict
from miner.environments.games.grading import clean_reply, parse_graded_reply, parse_step_action
from miner.environments.games.prompts import MAX_ATTEMPTS, PromptFormat, PromptFormatError
from miner.environments.games.session import CHANCE, GameSession, Move
from miner.environments.games.turn import Turn

__all__ = [
    "CHANCE",
    "MAX_ATTEMPTS",
    "GameSession",
    "GradedDialogue",
    "Move",
    "PromptFormat",
    "PromptFormatError",
    "Turn",
    "Verdict",
    "clean_reply",
    "game_name_of",
    "parse_graded_reply",
    "parse_step_action",
    "task_id_range",
]
