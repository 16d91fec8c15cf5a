"""A clone of the form of the tournament's repository, made from the table of facts."""

import json
from pathlib import Path
from textwrap import dedent

from miner.config import contract as here

FILES = {
    "core/constants/environments.py": """
        class EnvironmentName(str, Enum):
            GIN_RUMMY = "gin_rummy"
            LIARS_DICE = "liars_dice"
            LEDUC_POKER = "leduc_poker"
            OTHELLO = "othello"
            CLOBBER = "clobber"
            GOOFSPIEL = "goofspiel"
            INTERCODE = "intercode"
            SWE_INFINITE = "swe_infinite"
        """,
    "validator/tournament/constants.py": """
        raise SystemExit("a clone is parsed, never run")
        ENV_TRAINING_HOURS = 1.5
        ENV_TRAINING_HOURS_SWE_INFINITE = ENV_TRAINING_HOURS + 1.0
        ENV_TRAINING_HOURS_BOSS_ROUND_FROM_SCRATCH = 3.0
        ENV_ENVS_PER_ROUND_MULTIPLIER = 2
        ENV_FINAL_ROUND_TASK_COUNT = 3
        ENV_ADVANCE_PER_GROUP = 1
        MIN_ENVIRONMENT_GROUP_SIZE = 2
        MAX_ENVIRONMENT_GROUP_SIZE = 5
        FORCED: EnvironmentName | None = EnvironmentName.SWE_INFINITE
        """,
    "validator/tournament/gpu_requirements.py": """
        TOURNAMENT_GPU_THRESHOLD_FOR_2X_H100 = 4.0
        TOURNAMENT_GPU_THRESHOLD_FOR_4X_H100 = 12.0
        TOURNAMENT_GPU_THRESHOLD_FOR_8X_H100 = 40.0
        """,
    "core/pvp/constants.py": """
        PVP_SEED_RANGE_MAX = 1_000_000
        PVP_TURN_MAX_TOKENS = 512
        PVP_REFLECTION_MAX_TOKENS = 384
        PVP_MATCHUP_TIME_BUDGET_SECONDS = 15 * 60
        PVP_TURN_TIMEOUT_SECONDS = 30
        PVP_REFLECTION_TIMEOUT_SECONDS = 30
        PVP_HTTP_READ_TIMEOUT_SECONDS = 35
        PVP_HTTP_MAX_RETRIES = 1
        PVP_WORKING_MEM_SLOTS = 4
        PVP_WORKING_SLOT_TOKENS = 128
        PVP_LONGTERM_MEM_SLOTS = 8
        PVP_LONGTERM_SLOT_TOKENS = 128
        """,
    "validator/evaluation/constants.py": """
        PVP_SERVER_RECOVERY_MAX_RETRIES = 2
        PVP_TURN_TIMEOUT_SECONDS = pvp_cst.PVP_TURN_TIMEOUT_SECONDS
        PVP_EPISODE_FORFEIT_THRESHOLD = 10
        PVP_CONSECUTIVE_LOSS_FORFEIT = 10
        """,
    "core/pvp/tools.py": 'GAME_ACTION_TOOL_NAME = "game_action"',
    "core/models/pvp_models.py": """
        class MemoryArea(str, Enum):
            WORKING = "working_memory"
            LONG_TERM = "long_term_memory"

        class MemoryOp(str, Enum):
            REWRITE = "rewrite"
            APPEND = "append"

        class MemorySlotEdit(BaseModel):
            slot: int = Field(description="...")
            content: str = Field(description="...")

        class GameActionArgs(BaseModel):
            action_id: int = Field(description="...")
        """,
    "core/pvp/sglang_launch.py": 'dtype = os.getenv("SGLANG_DTYPE", "bfloat16")',
    "trainer/constants.py": """
        OUTPUT_CHECKPOINTS_PATH = "/app/checkpoints/"
        CACHE_MODELS_DIR = "/cache/models"
        MINER_DATASETS_DIR_ENV = "MINER_DATASETS_DIR"
        MINER_DATASETS_ENV = "MINER_DATASETS"
        DEFAULT_TEXT_DOCKERFILE_PATH = "dockerfiles/standalone-text-trainer.dockerfile"
        """,
}


def made_clone(folder: Path) -> Path:
    """Write a clone that holds what this miner is built for."""
    for name, text in FILES.items():
        _write(folder / name, dedent(text))
    order = [(part, "qwen" if parser == "qwen25" else parser) for part, parser in here.PARSER_ORDER]
    bases = {base: ("qwen", f"{base}.jinja") for base in here.BASES_WITHOUT_TEMPLATE}
    _write(
        folder / "core/pvp/sglang_parsers.py",
        f"_BASE_MODEL_TOOL_CONFIG: dict[str, tuple[str, str]] = {bases!r}\n"
        f"_FAMILY_PARSERS: list[tuple[str, str]] = {order!r}\n",
    )
    _write(folder / "core/whitelisted_env_models.py", f"ENV_MODEL_SIZE_B = {here.POOL!r}\n")
    _write(folder / "core/whitelisted_sft_datasets.json", json.dumps(list(here.DATASETS)))
    options = ", ".join(f'"{flag}", value' for flag in here.JOB_FLAGS)
    _write(
        folder / "trainer/image_manager.py",
        "async def run_trainer_container_image():\n    command = ['--dataset-zip', value]\n\n"
        f"async def run_trainer_container_text():\n    command: list[str] = [{options}]\n",
    )
    return folder


def changed(clone: Path, name: str, before: str, after: str) -> None:
    """Replace the first `before` in a file of the clone. Raises: `ValueError` if it has none."""
    text = (clone / name).read_text()
    text.index(before)
    (clone / name).write_text(text.replace(before, after, 1))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
