"""The folder of a run: its settings, base model and user's files, and whether it can be resumed.

Invariant: settings, base, the user's code and data and the wording of duels bind from the first
score or checkpoint on; a start that was refused before that binds nothing.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from miner.channels.registry import channel_class
from miner.config.channel_facts import FACTS
from miner.config.errors import ConfigurationError
from miner.config.run_files import (
    BEST_FILE,
    BEST_WEIGHTS_FILE,
    CHECKPOINTS,
    COMPLETE,
    REVERT_FILE,
    SETTINGS_FILE,
    WEIGHT_FILE,
    has_begun,
    newest_checkpoint,
    write_atomically,
)
from miner.config.settings import Settings, to_toml
from miner.duel.players.catalog import named
from miner.duel.tournament_files import wording_of
from miner.publishing.base_files import companions
from miner.publishing.structure import weight_files
from miner.recorded.record_files import files_of
from miner.reporting.records import EvaluationRecord, RecordFile
from miner.reporting.run_folder import RunFolder
from miner.reporting.token_records import FOLDER as TOKENS

BASE_FILE = "base_fingerprint.json"

WORDING = "the wording of prompts"
OWN = ("environment.", "reward.", "demonstrations.", WORDING)
"""Keys there that begin so are no files of the base model."""

MAY_DIFFER: dict[str, Any] = {
    "run_dir": True,  # the folder is the run, where it was moved too
    "deadline": True,
    "threads": True,
    "report_to": True,
    "token_records": True,
    "checkpoint": True,
    "model": {"path", "gradient_checkpointing"},  # the base is known by its fingerprint
    "environment": {"servers", "channel"},
    "demonstrations": {"processes"},
    "evaluation": {"time_share", "seconds"},
    "optimizer": {"micro_batch_tokens", "most_halvings", "max_steps"},
    "rollout": {
        *("max_episode_tokens", "episode_seconds", "live_episodes", "engine", "server"),
        *("memory_share", "start_seconds"),
    },
}
"""Settings that a resumed run may change: where it plays, how much memory and time it takes."""

WITH_ADAPTERS = {"model.tuning", "optimizer.learning_rate"}
"""Settings that may change where adapters take the place of full fine-tuning that saved nothing."""


def check_foreign(folder: Path) -> None:
    """Raise `ConfigurationError` if `folder` holds another tool's checkpoints or records."""
    if (folder / SETTINGS_FILE).exists() or has_begun(folder):
        return
    run, way_out = RunFolder(folder), "name a folder that does not exist yet, or move it away"
    for path in (folder / CHECKPOINTS, run.steps.path):
        if path.exists():
            raise ConfigurationError(
                f"run_dir {folder} holds {path.name}, which the miner has not written: {way_out}"
            )
    try:
        run.evaluations.read()  # those of `miner evaluate` are added to
    except (ConfigurationError, OSError) as error:
        raise ConfigurationError(f"run_dir {folder} cannot be used: {error}; {way_out}") from None


def prepare_run_dir(settings: Settings) -> None:
    """Make the folder, write settings and fingerprint, remove records of a run without checkpoint.

    Raises: `ConfigurationError` if it holds a run with other settings or of another base model or
        code, or cannot be written; `OSError` if the disk is full.
    """
    folder = settings.run_dir
    checkpoint = newest_checkpoint(folder / CHECKPOINTS)
    written = folder / SETTINGS_FILE
    known = written.exists()
    if known:
        try:
            before = Settings.load(written, environ={})
        except ConfigurationError as error:
            raise ConfigurationError(
                f"run_dir {folder} holds a run whose settings cannot be read any more ({error}): "
                "choose another run_dir, or remove this one"
            ) from None
        if has_begun(folder):
            _check_same_run(settings, before, folder, begun=checkpoint is not None)
    path = settings.model.path
    fingerprint = _checked_fingerprint(path, _own_files(settings), folder) if path else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(written, to_toml(settings))
        if fingerprint is not None:
            write_atomically(folder / BASE_FILE, json.dumps(fingerprint, indent=2) + "\n")
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):  # no mistake, and may pass
            raise
        raise ConfigurationError(f"run_dir {folder} cannot be written: {error}") from None
    _remove_half_written(folder)
    if checkpoint is None and known:
        leftovers = ["metrics.jsonl"]
        if not (folder / BEST_FILE).exists():  # else its models are not evaluated again
            leftovers += [REVERT_FILE, BEST_WEIGHTS_FILE]
            _remove_held_out(RunFolder(folder).evaluations)
        for leftover in leftovers:
            (folder / leftover).unlink(missing_ok=True)


def _remove_held_out(evaluations: RecordFile[EvaluationRecord]) -> None:
    """Remove evaluations of a run's own, which have a step; `miner evaluate` may have others."""
    kept: list[EvaluationRecord] = []
    with suppress(ConfigurationError):  # of another version
        kept = [record for record in evaluations.read()[0] if record.step is None]
    if kept:
        lines = (f"{record.model_dump_json()}\n" for record in kept)
        write_atomically(evaluations.path, "".join(lines))
    else:
        evaluations.path.unlink(missing_ok=True)


def _remove_half_written(folder: Path) -> None:
    """Remove files that a kill cut off: they take room."""
    for file in (WEIGHT_FILE, f".{BEST_WEIGHTS_FILE}"):
        (folder / file).unlink(missing_ok=True)
    for record in (folder / TOKENS).glob(".*"):
        record.unlink(missing_ok=True)
    for checkpoint in (folder / CHECKPOINTS).glob("checkpoint-*"):
        if not (checkpoint / COMPLETE).exists():
            shutil.rmtree(checkpoint, ignore_errors=True)


def _check_same_run(settings: Settings, before: Settings, folder: Path, *, begun: bool) -> None:
    now, then = _comparable(settings), _comparable(before)
    changed = [
        f"{section}.{name}" if isinstance(value, dict) else section
        for section, value in now.items()
        if value != then[section]
        for name in (value if isinstance(value, dict) else [""])
        if not isinstance(value, dict) or value[name] != then[section][name]
    ]
    classes = [channel_class(run.environment.channel) for run in (before, settings)]
    if classes[0] is not classes[1]:  # channels of one class play the same tasks
        changed.append("environment.channel")
    if (
        not begun
    ):  # a checkpoint is one of its stage and tuning; without one, the ladder may continue
        lowered = (before.model.tuning, settings.model.tuning) == ("full", "lora")
        free = {"optimizer.zero_stage"} | (WITH_ADAPTERS if lowered else set())
        changed = [name for name in changed if name not in free]
    if changed:
        raise ConfigurationError(
            f"run_dir {folder} holds a run with other settings ({', '.join(changed)}): resume with "
            "the same ones, name another run_dir, or delete the folder to start again"
        )


def _comparable(settings: Settings) -> dict[str, Any]:
    """The settings that bind a run: output.dir as resolved (best.json describes the model there),
    of model.path the name where the form of calls may follow from it."""
    values = settings.model_dump(exclude=MAY_DIFFER)
    if output := settings.output.dir:
        values["output"]["dir"] = output.resolve()
    facts = FACTS[settings.environment.channel]
    calls = "tool_parser" in facts.reads
    by_name = calls and settings.environment.tool_parser is None
    values["model"]["path"] = Path(settings.model.path or "").name if by_name else None
    if facts.supervised:  # likelihoods are of rows of that length
        values["rollout"]["max_episode_tokens"] = settings.rollout.max_episode_tokens
    return values


def _own_files(settings: Settings) -> dict[str, str]:
    """SHA-256 of the user's files, by the setting that names one; of data their names and sizes."""
    environment = settings.environment
    entries = {
        "environment.entry": environment.entry,
        "environment.code_agent.entry": environment.code_agent.entry,
        "reward.entry": settings.reward.entry,
        "demonstrations.teacher": settings.demonstrations.teacher,
    }
    files = {name: _file_of(entry.partition(":")[0]) for name, entry in entries.items()}
    plain = {
        "environment.code_agent.tools_script": environment.code_agent.tools_script,
        "environment.openenv.app": environment.openenv.app,
    }
    files |= {name: Path(entry.partition(":")[0]) for name, entry in plain.items()}
    for opponent in environment.opponents:
        place = named(opponent)[1].partition(":")[0]
        files[f"environment.opponents {opponent}"] = _file_of(place) if "." in place else Path()
    found = {name: _digest([file.read_bytes()]) for name, file in files.items() if file.is_file()}
    facts = FACTS[environment.channel]
    try:
        for folder in environment.datasets if facts.supervised else ():
            found[f"environment.datasets {folder}"] = _digest(_listed(folder))
        if facts.duels:
            found[WORDING] = _digest([repr(wording_of(None)).encode()])
    except (OSError, ConfigurationError):
        if has_begun(settings.run_dir):
            raise
        # the base is published first, then opening the channel raises the same
    return found


def _listed(folder: Path) -> list[bytes]:
    """Names and sizes of a data set's files, which decide what of it is held out."""
    files = [(file.relative_to(folder), file.stat().st_size) for file in files_of(folder)]
    return [f"{name} {size}\n".encode() for name, size in files]


def _file_of(place: str) -> Path:
    """The file that `place` names, itself or as a module."""
    if not place.endswith(".py"):
        with suppress(Exception):  # of a package; who plays it reports that
            spec = find_spec(place)
            return Path(spec.origin or "") if spec else Path()
    return Path(place)


def _checked_fingerprint(path: Path, own: dict[str, str], folder: Path) -> dict[str, str]:
    """The fingerprint of the base model and of the user's `own` files.

    Raises: `ConfigurationError` if the run began with another one.
    """
    try:
        now = base_fingerprint(path) | own
    except OSError as error:
        raise ConfigurationError(f"model.path {path} cannot be read: {error}") from None
    if not has_begun(folder) or not (folder / BASE_FILE).exists():
        return now
    try:
        then = json.loads((folder / BASE_FILE).read_text())
    except ValueError as error:
        raise ConfigurationError(
            f"{folder / BASE_FILE} is damaged ({error}): delete it if {path} is still the run's "
            "base model, else the whole folder"
        ) from None
    gone = {name for name in then if name.startswith(OWN)} - {*own}
    edited = sorted(gone | {name for name in own if then.get(name, now[name]) != now[name]})
    if edited:
        raise ConfigurationError(
            f"run_dir {folder} holds a run of other files: {', '.join(edited)} changed since: put "
            "back what there was, name another run_dir, or delete the folder to start again"
        )
    other = sorted(name for name in {*now, *then} - {*own} if now.get(name) != then.get(name))
    if other:
        raise ConfigurationError(
            f"run_dir {folder} holds a run of another base model than model.path {path} has now "
            f"({', '.join(other)}): put that one back, name another run_dir, or delete the folder "
            "to start again"
        )
    return now


BLOCK = 1 << 20
BLOCKS = 16


def base_fingerprint(base: Path) -> dict[str, str]:
    """SHA-256 by file name: of configuration, tokenizer and template, and of the weights' samples.

    A weight file gives its size and 16 blocks of 1 MiB, evenly spread from its first byte (where
    safetensors keeps names and shapes) to its last; a smaller one all of itself. So large models
    cost little, and other shapes, another dtype and weights that were trained on are noticed, also
    where embeddings and norms at the file's ends stayed (merged adapters). A change that lies
    between the blocks is not, such as one edited row of one tensor.
    Raises: `OSError`; `UnverifiedModelError` if the index of the weight files cannot be used.
    """
    digests = {file.name: _digest([file.read_bytes()]) for file in companions(base)}
    for file in weight_files(base):
        digests[file.name] = _digest(_samples(file))
    return digests


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    yield size.to_bytes(8)
    with file.open("rb") as stream:
        if size <= BLOCK * BLOCKS:
            yield stream.read()
            return
        for number in range(BLOCKS):
            stream.seek(number * (size - BLOCK) // (BLOCKS - 1))
            yield stream.read(BLOCK)


def _digest(parts: Iterator[bytes] | list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
