"""The games of the environment servers: seeded OpenSpiel sessions, their text formats, the grader's
parser and dialogue.

Another game here: its name in `miner.config.contract.GAMES`, its specification in `catalog`, its
rules' text in `rules`, and a state text in `state_texts` where the server words it differently.
Today's duels have games of their own, with other decks and texts: `miner.duel.games`.
"""

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
