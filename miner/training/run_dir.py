"""The folder of a run: its settings, and whether it can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from miner.environments import ConfigurationError
from miner.training.checkpoints import Checkpoint, newest_checkpoint
from miner.training.settings import Settings, load_settings, to_toml

SETTINGS_FILE = "settings.toml"

MAY_DIFFER: dict[str, Any] = {
    "deadline": True,
    "threads": True,
    "checkpoint": True,
    "environment": {"servers", "channel"},
    "optimizer": {"micro_batch", "max_skipped"},
    "rollout": {
        *("max_episode_tokens", "attempts", "episode_seconds", "engine", "server"),
        *("memory_share", "start_seconds", "sync_seconds"),
    },
}
"""Settings that a resumed run may change: where it plays, how much memory and time it takes."""


def prepare_run_dir(settings: Settings) -> Checkpoint | None:
    """Make the folder, write the settings, and find the checkpoint to resume from.

    Raises: `ConfigurationError` if it holds a run with other settings, or cannot be written.
    """
    folder = settings.run_dir
    checkpoint = newest_checkpoint(folder / "checkpoints")
    written = folder / SETTINGS_FILE
    if written.exists():
        _check_same_run(settings, load_settings(written, environ={}), folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(to_toml(settings))
    except OSError as error:
        raise ConfigurationError(f"run_dir {folder} cannot be written: {error}") from None
    if checkpoint is None:
        for leftover in ("metrics.jsonl", "evaluations.jsonl", "best.json"):
            (folder / leftover).unlink(missing_ok=True)
    return checkpoint


def _check_same_run(settings: Settings, before: Settings, folder: Path) -> None:
    now, then = settings.model_dump(exclude=MAY_DIFFER), before.model_dump(exclude=MAY_DIFFER)
    changed = [
        f"{section}.{name}" if isinstance(value, dict) else section
        for section, value in now.items()
        if value != then[section]
        for name in (value if isinstance(value, dict) else [""])
        if not isinstance(value, dict) or value[name] != then[section][name]
    ]
    if changed:
        raise ConfigurationError(
            f"run_dir {folder} holds a run with other settings ({', '.join(changed)}): resume with "
            "the same ones, name another run_dir, or delete the folder to start afresh"
        )
