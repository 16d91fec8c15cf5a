"""Facts of the tournament's repository that this miner is built for: the place of each there,
its value here, and what depends on it.

`differences` compares a clone with it. The values are `contract`'s, which the code reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miner.config import contract as here
from miner.config.errors import ConfigurationError
from miner.config.upstream import (
    Reader,
    Unreadable,
    constant,
    default_of,
    enum_values,
    fields,
    flags_in,
    json_file,
)

ENGINES_NEW_NAMES = {"qwen": "qwen25"}

Form = Callable[[Any], Any]


@dataclass(frozen=True)
class Fact:
    """One fact.

    Attributes:
        name: as the tournament's files call it.
        files: its places in the clone; the first that exists counts.
        read: reads the file.
        value: its value here.
        needed_by: files that depend on it here.
        form: applied to what was read before it is compared.
    """

    name: str
    files: tuple[str, ...]
    read: Reader
    value: Any
    needed_by: str
    form: Form = lambda read: read


@dataclass(frozen=True)
class Difference:
    """A fact that is another in the clone.

    Attributes:
        there: the value there, or the sentence about why it cannot be read.
    """

    fact: Fact
    file: str
    there: Any

    def __str__(self) -> str:
        return (
            f"{self.fact.name} ({self.file}): here {self.fact.value!r}, there {self.there!r}; "
            f"needed by {self.fact.needed_by}"
        )


def _constants(
    files: tuple[str, ...], needed_by: str, form: Form = lambda read: read, /, **values: Any
) -> Iterator[Fact]:
    for name, value in values.items():
        yield Fact(name, files, constant(name), value, needed_by, form)


def _order(read: Any) -> Any:
    return tuple((part, ENGINES_NEW_NAMES.get(parser, parser)) for part, parser in read)


def _exact(read: Any) -> Any:
    return {base: ENGINES_NEW_NAMES.get(value[0], value[0]) for base, value in read.items()}


_PVP = ("core/pvp/constants.py",)
_TOURNAMENT = ("validator/tournament/constants.py", "validator/core/constants.py")
_EVALUATION = ("validator/evaluation/constants.py", "validator/core/constants.py")
_GPUS = ("validator/tournament/gpu_requirements.py", "validator/core/constants.py")
_ENVIRONMENTS = ("core/constants/environments.py", "core/constants.py")
_TRAINER = ("trainer/constants.py",)
_STARTED = ("trainer/image_manager.py", "trainer/runtime.py")
_PARSERS = ("core/pvp/sglang_parsers.py",)
_LAUNCH = ("core/pvp/sglang_launch.py",)
_TOOLS = ("core/pvp/tools.py",)
_MODELS = ("core/models/pvp_models.py",)
_POOL = ("core/whitelisted_env_models.py",)
_DATASETS = ("core/whitelisted_sft_datasets.json", "core/datasets/whitelisted_sft_datasets.json")
_NAMES = sorted((*here.GAMES, here.INTERCODE, here.SWE))
_JOB, _PATHS, _FAMILY = "entrypoint/job.py", "entrypoint/paths.py", "miner/duel/family.py"
_SERVED = "miner/evaluation/model.py, miner/duel/players/model.py"

FACTS = (
    Fact("EnvironmentName", _ENVIRONMENTS, enum_values("EnvironmentName"), _NAMES, _JOB, sorted),
    *_constants(
        _TOURNAMENT,
        "entrypoint/schedule.py",
        ENV_TRAINING_HOURS=here.TRAINING_HOURS,
        ENV_TRAINING_HOURS_BOSS_ROUND_FROM_SCRATCH=here.FROM_SCRATCH_HOURS,
        ENV_TRAINING_HOURS_SWE_INFINITE=here.SWE_HOURS,
    ),
    *_constants(
        _GPUS,
        "entrypoint/topology.py",
        **{
            f"TOURNAMENT_GPU_THRESHOLD_FOR_{2 * gpus}X_H100": most
            for most, gpus in here.GPU_THRESHOLDS
        },
    ),
    *_constants(
        _PVP,
        "miner/duel/turn.py, miner/duel/match.py",
        PVP_TURN_MAX_TOKENS=here.DUEL_REPLY_TOKENS,
        PVP_REFLECTION_MAX_TOKENS=here.REFLECTION_TOKENS,
        PVP_MATCHUP_TIME_BUDGET_SECONDS=here.MATCH_SECONDS,
        PVP_SEED_RANGE_MAX=here.LARGEST_GRADER_SEED,
    ),
    *_constants(
        _PVP,
        "miner/duel/play.py, miner/duel/players/endpoint.py",
        PVP_TURN_TIMEOUT_SECONDS=here.TURN_SECONDS,
        PVP_REFLECTION_TIMEOUT_SECONDS=here.TURN_SECONDS,
        PVP_HTTP_READ_TIMEOUT_SECONDS=here.HTTP_SECONDS,
        PVP_HTTP_MAX_RETRIES=here.HTTP_RETRIES,
    ),
    *_constants(
        _EVALUATION,
        "miner/duel/match.py",
        PVP_EPISODE_FORFEIT_THRESHOLD=here.MOST_FORFEITS,
        PVP_CONSECUTIVE_LOSS_FORFEIT=here.LOSSES_IN_A_ROW,
        PVP_SERVER_RECOVERY_MAX_RETRIES=here.GAME_REPLAYS,
    ),
    *_constants(
        _PVP,
        "miner/duel/memory.py",
        PVP_WORKING_MEM_SLOTS=here.MEMORY_SLOTS[here.WORKING],
        PVP_LONGTERM_MEM_SLOTS=here.MEMORY_SLOTS[here.LONG_TERM],
        PVP_WORKING_SLOT_TOKENS=here.MEMORY_SLOT_TOKENS,
        PVP_LONGTERM_SLOT_TOKENS=here.MEMORY_SLOT_TOKENS,
    ),
    *_constants(_TOOLS, "miner/duel/tools.py", GAME_ACTION_TOOL_NAME=here.MOVE_TOOL),
    *(
        Fact(name, _MODELS, read(name), value, "miner/duel/tools.py, miner/duel/memory.py")
        for name, read, value in (
            ("MemoryArea", enum_values, list(here.MEMORY_SLOTS)),
            ("MemoryOp", enum_values, list(here.MEMORY_EDITS)),
            ("MemorySlotEdit", fields, {"slot": "int", "content": "str"}),
            ("GameActionArgs", fields, {"action_id": "int"}),
        )
    ),
    *_constants(_PARSERS, _FAMILY, _order, _FAMILY_PARSERS=here.PARSER_ORDER),
    *_constants(_PARSERS, _FAMILY, _exact, _BASE_MODEL_TOOL_CONFIG=here.BASES_WITHOUT_TEMPLATE),
    Fact("SGLANG_DTYPE", _LAUNCH, default_of("SGLANG_DTYPE"), here.SERVING_DTYPE, _SERVED),
    *_constants(_POOL, "docs/base_models.md, entrypoint/topology.py", ENV_MODEL_SIZE_B=here.POOL),
    *_constants(
        _TOURNAMENT,
        "miner/duel/scoring.py",
        ENV_ENVS_PER_ROUND_MULTIPLIER=here.ENVIRONMENTS_PER_ROUND,
        ENV_ADVANCE_PER_GROUP=here.ADVANCING_PER_GROUP,
        MIN_ENVIRONMENT_GROUP_SIZE=here.GROUP_SIZES[0],
        MAX_ENVIRONMENT_GROUP_SIZE=here.GROUP_SIZES[1],
    ),
    *_constants(
        _TRAINER,
        _PATHS,
        OUTPUT_CHECKPOINTS_PATH=f"{here.CHECKPOINTS_DIR}/",
        CACHE_MODELS_DIR=f"{here.CACHE_DIR}/models",
        MINER_DATASETS_DIR_ENV=here.DATASETS_DIR_VARIABLE,
        MINER_DATASETS_ENV=here.DATASETS_VARIABLE,
    ),
    *_constants(
        _TRAINER,
        "scripts/check_submission.py",
        lambda path: here.DOCKERFILES if path in here.DOCKERFILES else path,
        DEFAULT_TEXT_DOCKERFILE_PATH=here.DOCKERFILES,
    ),
    Fact(
        "run_trainer_container_text",
        _STARTED,
        flags_in("run_trainer_container_text"),
        list(here.JOB_FLAGS),
        _JOB,
    ),
    Fact("whitelisted data sets", _DATASETS, json_file, sorted(here.DATASETS), _JOB, sorted),
)
LICENCES = ("LICENSE", "NOTICE")


def differences(clone: Path) -> list[Difference]:
    """Return what `clone` holds otherwise than this miner is built for.

    Args:
        clone: of the tournament's repository; its licence is compared with the working folder's.

    Raises: `ConfigurationError` for a folder that is not such a clone.
    """
    if not any((clone / name).is_file() for name in _PVP + _TRAINER):
        raise ConfigurationError(
            f"{clone} is not a clone of the tournament's repository, or one of an older layout: it "
            f"has neither {_PVP[0]} nor {_TRAINER[0]}"
        )
    found = [different for fact in FACTS if (different := _compare(clone, fact))]
    for name in LICENCES:
        ours, theirs = Path(name), clone / name
        if ours.is_file() and (not theirs.is_file() or ours.read_bytes() != theirs.read_bytes()):
            fact = Fact(name, (name,), constant(name), f"{ours}", "scripts/check_submission.py")
            found.append(Difference(fact, name, "another text"))
    return found


def _compare(clone: Path, fact: Fact) -> Difference | None:
    name = next((name for name in fact.files if (clone / name).is_file()), fact.files[0])
    try:
        there = fact.form(fact.read(clone / name))
    except Unreadable as error:
        return Difference(fact, name, str(error))
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        return Difference(fact, name, "another form than is known here")
    return None if there == fact.value else Difference(fact, name, there)
