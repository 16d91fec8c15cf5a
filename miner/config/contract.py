"""Facts of the tournament, each once: its servers' limits, its grader's list, its variables.

Everything here may change upstream: `python -m miner contract --from CLONE` compares (`watched`).
"""

import re
from collections.abc import Mapping
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
RECORDED_CHANNEL: Final = "recorded"
DuelCards = Literal[5, 8, 10, 13]
DUEL_CARDS: Final = (5, 8, 10, 13)
"""Goofspiel's deck sizes in duels, by seed; servers have others (`DECK_SIZES`)."""
DuelBoard = Literal["4x5", "5x5", "5x6"]
DUEL_BOARDS: Final = ("4x5", "5x5", "5x6")
"""Clobber's boards in duels, by seed."""

DUEL_REPLY_TOKENS: Final = 512
"""Longest reply of a turn."""
DUEL_TURN_TOKENS: Final = 2560
"""Longest turn in Qwen's vocabulary: a prompt with full notes, and the longest reply."""
REFLECTION_TOKENS: Final = 384
"""Longest reply after a game."""
MATCH_SECONDS: Final = 900
"""Clock of a match in one environment."""
TURN_SECONDS: Final = 30.0
"""Longest turn, and longest reflection."""
HTTP_SECONDS: Final = 35.0
"""Longest wait for one answer of a player's server."""
HTTP_RETRIES: Final = 1
GAME_REPLAYS: Final = 2
"""Times a game is played again because a player's server was away."""
MOST_FORFEITS: Final = 10
"""Of one player: they end a match."""
LOSSES_IN_A_ROW: Final = 10
"""They end a match up to the game of this number; after it, twice as many do."""

WORKING: Final = "working_memory"
LONG_TERM: Final = "long_term_memory"
MEMORY_SLOTS: Final = {WORKING: 4, LONG_TERM: 8}
MEMORY_SLOT_TOKENS: Final = 128
MEMORY_EDITS: Final = ("rewrite", "append")
MOVE_TOOL: Final = "game_action"

ToolParser = Literal[
    "qwen25", "hermes", "llama3", "mistral", "qwen3_coder", "olmo", "lfm2", "gemma4"
]
"""Parsers of tool calls, by the serving engine's names; newer engines call qwen25 qwen."""

BASES_WITHOUT_TEMPLATE: Final[dict[str, ToolParser]] = {
    "google/gemma-4-e2b": "qwen25",
    "mistralai/ministral-3-3b-base-2512": "qwen25",
}
"""Parsers of bases that are served with a template of the validator's, by their exact ids. By
their types alone they would get other parsers."""

SERVED_BY_TRANSFORMERS: Final = frozenset({"olmo_hybrid"})
"""Model types that SGLang cannot run. The tournament's small server in its place gives the chat
template tools as they were sent, and ends a reply at the tokenizer's EOS alone."""

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
    ("qwen3", "qwen25"),
    ("qwen2", "qwen25"),
    ("qwen", "qwen25"),
    ("llama", "llama3"),
    ("mixtral", "mistral"),
    ("mistral", "mistral"),
)
"""Part of a model's id, else of its type, and its parser; the first that fits counts."""

ServedDtype = Literal["float16", "bfloat16"]
SERVING_DTYPE: Final = "bfloat16"
"""Dtype that models of duels are served in."""
FIRST_FORMAT_DTYPE: Final = "float16"
"""Dtype that the first format's grader serves in."""

POOL: Final[dict[str, float]] = {
    "unsloth/Llama-3.2-3B-Instruct": 3.0,
    "unsloth/Meta-Llama-3.1-8B-Instruct": 8.0,
    "Qwen/Qwen3-4B-Instruct-2507": 4.0,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.5,
    "Qwen/Qwen2.5-3B-Instruct": 3.0,
    "Qwen/Qwen2.5-7B-Instruct": 7.0,
    "Qwen/Qwen3.5-0.8B": 0.8,
    "Qwen/Qwen3.5-2B": 2.0,
    "Qwen/Qwen3.5-4B": 5.0,
    "ibm-granite/granite-4.1-3b": 3.0,
    "allenai/Olmo-3-7B-Instruct": 7.0,
    "allenai/Olmo-Hybrid-Instruct-SFT-7B": 7.0,
    "LiquidAI/LFM2.5-2.6B": 2.6,
    "mistralai/Ministral-3-3B-Base-2512": 4.0,
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": 4.0,
    "google/gemma-4-E2B": 5.1,
}
"""Bases that jobs train, with the billions of parameters by which the validator assigns GPUs."""
GPU_THRESHOLDS: Final = ((4.0, 1), (12.0, 2), (40.0, 4))
"""Most billions of parameters, and the GPUs of a job up to them; above all: 8."""

TRAINING_HOURS: Final = 1.5
FROM_SCRATCH_HOURS: Final = 3.0
SWE_HOURS: Final = 2.5
BUILD_MINUTES: Final = 30.0
"""A build that takes longer is a failed entry."""

INTERCODE: Final = "intercode"
SWE: Final = "swe_infinite"
"""Tasks of the final's third job: no duel, and no server while training."""
SWE_TURNS: Final = 18
"""About as many turns as the clock of one of its tasks has room for."""
SWE_REPLY_TOKENS: Final = 1024
"""Longest reply of such a turn."""
SWE_SUBMISSION: Final = (
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
)

ENVIRONMENTS_PER_ROUND: Final = 2
GROUP_SIZES: Final = (2, 5)
ADVANCING_PER_GROUP: Final = 1

CACHE_DIR: Final = "/cache"
CHECKPOINTS_DIR: Final = "/app/checkpoints"
DATASETS_DIR_VARIABLE: Final = "MINER_DATASETS_DIR"
DATASETS_VARIABLE: Final = "MINER_DATASETS"
JOB_FLAGS: Final = (
    "--task-id",
    "--model",
    "--dataset",
    "--dataset-type",
    "--task-type",
    "--file-format",
    "--expected-repo-name",
    "--hours-to-complete",
)
DOCKERFILES: Final = (
    "ops/docker/standalone-text-trainer.dockerfile",
    "dockerfiles/standalone-text-trainer.dockerfile",
)
"""Built by validators: the first, or the second where they look for that one only."""

SWE_DATASET: Final = "gradients-io-tournaments/SWE-ZERO-12M-trajectories-filtered"
INTERCODE_DATASET: Final = "gradients-io-tournaments/intercode_bigcode_combined_12k"
DATASETS: Final = (
    "SoelMgd/Poker_Dataset",
    "RZ412/PokerBench",
    "albarji/ballmatro",
    "Mahesh111000/Hanabi_dataset",
    "hkust-nlp/agentboard",
    "tasksource/Boardgame-QA",
    "GoodStartLabs/gin-rummy-trajectories-32k",
    "gradients-io-tournaments/ArkadiumGinrummy",
    "the-acorn-ai/textarena-player-game-traces",
    "gradients-io-tournaments/env_training_gradients",
    INTERCODE_DATASET,
    "gradients-io-tournaments/pvp-tool-calling-sft",
    SWE_DATASET,
)
"""Whitelisted for supervised training; two at most are mounted on request."""


def game_title(environment: str) -> str:
    """A game's name for people, without its channel's prefix."""
    return environment.rpartition(":")[2].replace("_", " ")


def is_game(environment: str) -> bool:
    """Return whether this names one of `GAMES`, which has an opponent; duels are named
    duel:GAME."""
    return environment.rpartition(":")[2] in GAMES


def agent_seat(seed: int) -> int:
    """The player that the agent is in a game on a server: 0 for even seeds, 1 for odd ones."""
    return seed % 2


def split_server_urls(text: str) -> list[str]:
    """The unchecked items of `SERVERS_VARIABLE`, each once: separated by commas, semicolons or
    spaces, in quotes or without, perhaps as a JSON list."""
    text = text.strip().strip("\"'")
    if text.startswith("["):
        text = text.removeprefix("[").removesuffix("]")
    items = (item.strip("\"'").rstrip("/") for item in re.split(r"[\s,;]+", text))
    return [item for item in dict.fromkeys(items) if item]


def mounted_datasets(environ: Mapping[str, str]) -> list[str]:
    """Folders of the data sets that a validator has mounted."""
    names = environ.get(DATASETS_VARIABLE, "").replace(",", " ").split()
    under = environ.get(DATASETS_DIR_VARIABLE, "")
    return [f"{under}/{dataset_folder(name)}" for name in names if under]


def dataset_folder(name: str) -> str:
    """Name of the folder of a mounted data set: ORG--NAME for ORG/NAME."""
    return name.replace("/", "--")
