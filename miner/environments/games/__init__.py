"""The games of the environment servers: seeded OpenSpiel sessions, their text formats, the grader's
parser and dialogue.

What differs from game to game is in `miner.games`.
"""

from miner.environments.games.dialogue import GradedDialogue, Verdict
from miner.environments.games.grading import clean_reply, parse_graded_reply, parse_step_action
from miner.environments.games.prompts import MAX_ATTEMPTS, PromptFormat, PromptFormatError
from miner.environments.games.session import CHANCE, GameSession, Move

__all__ = [
    "CHANCE",
    "MAX_ATTEMPTS",
    "GameSession",
    "GradedDialogue",
    "Move",
    "PromptFormat",
    "PromptFormatError",
    "Verdict",
    "clean_reply",
    "parse_graded_reply",
    "parse_step_action",
]
