"""The tournament's arguments and environment as one validated `Job`.

Invariants: every field of a `Job` is usable as it is (names are single path parts, the budget is a
positive number of seconds); what the tournament may add later is warned about and ignored.
"""

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from entrypoint.console import mask_url
from entrypoint.exit_status import ExitStatus, Failure
from miner.config.contract import (
    FROM_SCRATCH_HOURS,
    SERVERS_VARIABLE,
    SWE_HOURS,
    TRAINING_HOURS,
    mounted_datasets,
    split_server_urls,
)

UNDER_ONE_HOUR_SECONDS = 30 * 60.0  # planned when the tournament gives 0: some time below one hour
EXPECTED_TASK_TYPE = "EnvTask"
EXPECTED_FILE_FORMAT = "s3"
LONGEST_HOURS = 24.0 * 31
KNOWN_HOURS = (TRAINING_HOURS, SWE_HOURS, FROM_SCRATCH_HOURS)


class Job(BaseModel):
    """One task of the tournament: what to train, on which games, for how long, to be put where."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    task_id: str = Field(description="First part of the output path.")
    model: str = Field(description="Base model as the tournament names it, e.g. Qwen/Qwen2.5-3B.")
    repo_name: str = Field(description="Second part of the output path.")
    environments: tuple[str, ...] = Field(min_length=1, description="Games to train, as listed.")
    duels: bool = Field(False, description="True if models meet each other, as they do today.")
    servers: tuple[str, ...] = Field((), description="Environment servers, one base URL each.")
    datasets: tuple[Path, ...] = Field((), description="Folders of mounted data sets, as listed.")
    seconds: float = Field(gt=0, description="Seconds planned for, from the container's start.")
    hours_note: str = Field(description="One line: how the hours given led to `seconds`.")

    @field_validator("task_id", "repo_name")
    @classmethod
    def _is_one_path_part(cls, value: str) -> str:
        if not re.fullmatch(r"[^\s/\\.][^\s/\\]*", value) or not value.isprintable():
            raise ValueError("must be one path part without a leading dot, slashes or spaces")
        return value

    @field_validator("model")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not re.fullmatch(r"[^\s/\\.][^\s\\]*", value) or not value.isprintable():
            raise ValueError("must be a model's name such as organisation/name")
        return value


@dataclass(frozen=True)
class Invocation:
    """A parsed command line: the job, the user's own settings, and lines of warning.

    Attributes:
        dry_run: print the plan and exit.
        gpus: a pretended inventory such as "4xH100-80GB"; None: look at the machine.
        model_config: a pretended base model, such as "7B" or a config.json; None: look into the
            cache.
        overrides: settings of the trainer, each KEY=VALUE.
        recipe: a recipe by its name; None: by the model's size.
    """

    job: Job
    dry_run: bool
    gpus: str | None
    model_config: str | None
    overrides: tuple[str, ...]
    warnings: tuple[str, ...]
    recipe: str | None = None

    @property
    def by_hand(self) -> bool:
        """The user chose some of the trainer's settings, which no validator does."""
        return bool(self.overrides) or self.recipe is not None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure(ExitStatus.ARGUMENTS, f"{message}; see python -m entrypoint --help")


def parse_invocation(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Invocation:
    """Arguments and ENVIRONMENT_SERVER_URLS -> `Invocation`. Raises: `Failure` (ARGUMENTS)."""
    known, unknown = _parser().parse_known_args(arguments)
    warnings = _unknown_arguments(unknown)
    if known.task_type != EXPECTED_TASK_TYPE:
        warnings.append(f"--task-type is {known.task_type!r}, trained as {EXPECTED_TASK_TYPE}")
    if known.file_format != EXPECTED_FILE_FORMAT:
        warnings.append(f"--file-format is {known.file_format!r}: ignored, the games are the data")
    if known.hours_to_complete is None:
        warnings.append("--hours-to-complete is missing: treated as 0")
    seconds, hours_note = plan_hours(known.hours_to_complete or "0")
    environments, duels = parse_dataset_type(known.dataset_type)
    servers = split_server_urls(environ.get(SERVERS_VARIABLE, ""))
    warnings += [
        f"{SERVERS_VARIABLE}: {mask_url(url)!r} is left out: expected http://host:8000"
        for url in servers
        if not _is_http(url)
    ]
    try:
        job = Job(
            task_id=known.task_id,
            model=known.model,
            repo_name=known.expected_repo_name,
            environments=environments,
            duels=duels,
            servers=tuple(filter(_is_http, servers)),
            datasets=tuple(map(Path, mounted_datasets(environ))),
            seconds=seconds,
            hours_note=hours_note,
        )
    except ValidationError as error:
        raise Failure(ExitStatus.ARGUMENTS, _explain(error)) from None
    pretended = {"--gpus": known.gpus, "--model-config": known.model_config}
    for name, value in pretended.items():
        if value not in (None, "0") and not known.dry_run:  # --gpus 0 is true on any machine
            raise Failure(ExitStatus.ARGUMENTS, f"{name} pretends: only with --dry-run")
    return Invocation(
        job,
        known.dry_run,
        known.gpus,
        known.model_config,
        tuple(known.set),
        tuple(warnings),
        known.recipe,
    )


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        extra = parts.username or parts.password or parts.query or parts.fragment
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return named and not extra
    except ValueError:  # a port that is no number, or too large
        return False


def plan_hours(text: str) -> tuple[float, str]:
    """`--hours-to-complete` -> (seconds to plan for, the line that explains them).

    A number without a decimal point may be a truncated one: it is planned for the shortest task of
    the tournament that it may be. The folder is uploaded after a kill too, so that a shorter one
    loses the last stretch alone. 0 means anything below one hour. Raises: `Failure` (ARGUMENTS).
    """
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 <= hours <= LONGEST_HOURS:  # also false for nan
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"--hours-to-complete is {text!r}, expected a number of hours "
            f"from 0 to {LONGEST_HOURS:.0f}",
        )
    if hours == 0:
        minutes = UNDER_ONE_HOUR_SECONDS / 60
        return UNDER_ONE_HOUR_SECONDS, (
            f"hours given as 0, that is under one hour: planned for {minutes:.0f} minutes; better "
            "models are published as they come, so an earlier kill loses only the last stretch"
        )
    if text.strip().isdigit():
        likely = min((known for known in KNOWN_HOURS if int(known) == hours), default=hours)
        return likely * 3600, (
            f"{hours:g} h given, which may be truncated: planned for {likely:g} h; write "
            f"{hours:.1f} for exactly that"
        )
    return hours * 3600, f"{hours:g} h given: planned for {hours:g} h"


def parse_dataset_type(text: str) -> tuple[tuple[str, ...], bool]:
    """Names of games from either form of `--dataset-type`; unknown keys are ignored.

    Returns: the names, and whether they are a list, as since models meet each other in duels.
    Raises: `Failure` (ARGUMENTS).
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    given = value if isinstance(value, dict) else {}
    many, one = given.get("environment_names"), given.get("environment_name")
    names: list[object] = list(many) if isinstance(many, list) else []
    names += [] if one is None else [one]
    cleaned = [name.strip() for name in names if isinstance(name, str) and name.strip()]
    if not cleaned or len(cleaned) != len(names):
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"--dataset-type is {text[:200]!r}, expected JSON such as "
            '{"environment_name": "goofspiel"} or {"environment_names": ["goofspiel"]}',
        )
    return tuple(dict.fromkeys(cleaned)), bool(many)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m entrypoint",
        allow_abbrev=False,
        description="Train on a tournament's environment task and publish the model.",
        epilog="Environment: ENVIRONMENT_SERVER_URLS (http://host:port, comma-separated), "
        "MINER_CACHE_DIR (default /cache), MINER_CHECKPOINTS_DIR (default /app/checkpoints), "
        "MINER_GRACE_SECONDS (default 10: between the engine's SIGTERM and its SIGKILL).",
    )
    task = parser.add_argument_group("the tournament's arguments")
    task.add_argument("--task-id", required=True)
    task.add_argument("--model", required=True, help="base model; its folder is in the cache")
    task.add_argument("--dataset", default="", help="ignored: a stub in environment tasks")
    task.add_argument("--dataset-type", required=True, help="JSON with the games' names")
    task.add_argument("--task-type", default=EXPECTED_TASK_TYPE)
    task.add_argument("--file-format", default=EXPECTED_FILE_FORMAT)
    task.add_argument("--expected-repo-name", required=True)
    task.add_argument("--hours-to-complete", help="may be truncated; 0 means under one hour")
    user = parser.add_argument_group("for use at a terminal")
    user.add_argument("--dry-run", action="store_true", help="print the plan and exit")
    user.add_argument(
        "--gpus", metavar="INVENTORY", help="plan for e.g. 4xH100-80GB (--dry-run), or 0: no GPU"
    )
    user.add_argument(
        "--model-config",
        metavar="SIZE|FILE",
        help="plan for a model that is not there (--dry-run): 7B, or its config.json",
    )
    user.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of the trainer"
    )
    user.add_argument("--recipe", metavar="NAME", help="of recipes/, else by the model's size")
    return parser


def _unknown_arguments(unknown: Sequence[str]) -> list[str]:
    """One warning that names the unknown options; values stay out, they may be secrets."""
    names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if not unknown:
        return []
    shown = ", ".join(names) if names else f"{len(unknown)} positional"
    return [f"unknown arguments are ignored: {shown}"]


_ARGUMENT_OF = {
    "task_id": "--task-id",
    "model": "--model",
    "repo_name": "--expected-repo-name",
    "servers": SERVERS_VARIABLE,
}


def _explain(error: ValidationError) -> str:
    sentences = []
    for problem in error.errors():
        name = str(problem["loc"][0])
        message = problem["msg"].removeprefix("Value error, ")
        given = "" if name == "servers" else f" is {problem['input']!r}"
        sentences.append(f"{_ARGUMENT_OF.get(name, name)}{given}: {message}")
    return "; ".join(sentences)
