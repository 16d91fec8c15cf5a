"""What the tournament fixes, each fact once: its servers' limits, its grader's list, its variables.

Everything here may change upstream.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

SERVERS_VARIABLE: Final = "ENVIRONMENT_SERVER_URLS"
"""Base URLs of the environment servers, separated by commas; absent where a job has none."""

GRADED_EPISODES_PER_SERVER: Final = 48
"""Graded episodes at once on one server: about twice as many deadlock it for good."""

LARGEST_SEED: Final = 4_294_967_195
"""That a server takes: it seeds numpy with up to `seed + 100`."""

GRADER_BASE_SEED: Final = 42
GRADER_EPISODES: Final = 250
LARGEST_GRADER_SEED: Final = 1_000_000
"""The grader draws each episode's seed from 1 to this."""

GOOFSPIEL: Final = "goofspiel"
GameName = Literal["goofspiel", "liars_dice", "leduc_poker", "gin_rummy", "othello", "clobber"]
GAMES: Final[tuple[GameName, ...]] = get_args(GameName)
"""Games that can be trained; the tournament may name others."""

DeckSize = Literal[8, 10, 12, 14, 16]
DECK_SIZES: Final = (8, 10, 12, 14, 16)
"""Goofspiel's on servers, by task_id modulo 5; duels have others (`DUEL_CARDS`)."""

DUEL_CHANNEL: Final = "duel"
DuelCards = Literal[5, 8, 10, 13]
DUEL_CARDS: Final = (5, 8, 10, 13)
"""Goofspiel's deck sizes in duels, by seed; servers have others (`DECK_SIZES`)."""

DUEL_REPLY_TOKENS: Final = 512
"""Longest reply of a turn."""

ToolParser = Literal[
    "qwen25", "hermes", "llama3", "mistral", "qwen3_coder", "olmo", "lfm2", "gemma4"
]
"""What reads tool calls, by the serving engine's names; newer engines call qwen25 qwen."""

BASES_WITHOUT_TEMPLATE: Final[dict[str, ToolParser]] = {
    "google/gemma-4-e2b": "qwen25",
    "mistralai/ministral-3-3b-base-2512": "qwen25",
}
"""Parsers of bases that are served with a template of the validator's, by their exact ids. By
their types alone they would get other parsers."""

PARSER_ORDER: Final[tuple[tuple[str, ToolParser], ...]] = (
    ("qwen3.5", "qwen3_coder"),
    ("qwen3_5", "qwen3_coder"),
    ("qwen3-coder", "qwen3_coder"),
    ("nemotron-3", "qwen3_coder"),
    ("nemotron_h", "qwen3_coder"),
    ("olmo_hybrid", "olmo"),
    ("olmo-hybrid", "olmo"),
    ("olmo3", "olmo"),
    ("olmo-3", "olmo"),
    ("lfm2.5", "lfm2"),
    ("lfm2", "lfm2"),
    ("gemma4", "gemma4"),
    ("gemma-4", "gemma4"),
    ("granite", "qwen25"),
    ("hermes", "hermes"),
    ("qwen", "qwen25"),
    ("llama", "llama3"),
    ("mixtral", "mistral"),
    ("mistral", "mistral"),
)
"""Part of a model's id, else of its type, and its parser; the first that fits counts."""


def is_game(environment: str) -> bool:
    """Whether this names one of `GAMES`, which has an opponent; duels are named duel:GAME."""
    return environment.rpartition(":")[2] in GAMES


def agent_seat(seed: int) -> int:
    """The player that the agent is in a game on a server: 0 for even seeds, 1 for odd ones."""
    return seed % 2


def split_server_urls(text: str) -> list[str]:
    """The unchecked items of `SERVERS_VARIABLE`, separated by commas or spaces, each once."""
    return list(dict.fromkeys(url.rstrip("/") for url in text.replace(",", " ").split()))
