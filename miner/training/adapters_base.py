"""From full fine-tuning to adapters in the middle of a run: what was learned becomes their base.

Invariants:
* adapters begin as no change at all, on the weights of the newest full checkpoint (in the base
  model's own dtypes, as publishing rounds them);
* as long as no adapters were saved, the full checkpoint stays the newest one and the base can be
  made again; afterwards every checkpoint and every published model builds on that one base.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from miner.config.settings import Settings
from miner.publishing.merge import ADAPTER_CONFIG, write_trained_model

FOLDER = "adapters_base"


def holds_adapters(checkpoint: Path) -> bool:
    """Whether a checkpoint is of adapters; otherwise it has all weights."""
    return (checkpoint / ADAPTER_CONFIG).is_file()


def adapters_base(settings: Settings) -> Path | None:
    """The model folder that this run's adapters build on, None if that is the base model."""
    folder = settings.run_dir / FOLDER
    return folder if settings.model.tuning == "lora" and folder.is_dir() else None


def make_adapters_base(base: Path, checkpoint: Path, run_dir: Path) -> None:
    """Make the weights of the full `checkpoint` and all else of `base` the adapters' base.

    Raises: `PublishingError` if the two do not fit, `OSError` if the disk refuses.
    """
    beside = run_dir / f".{FOLDER}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    write_trained_model(base, checkpoint, beside)
    forget_adapters_base(run_dir)
    beside.replace(run_dir / FOLDER)


def forget_adapters_base(run_dir: Path) -> None:
    """Remove the base of adapters that are gone."""
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
