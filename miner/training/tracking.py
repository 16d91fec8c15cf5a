"""Experiment trackers beside the run's own records: what TRL logs goes to each that is named."""

from __future__ import annotations

import os
from importlib.util import find_spec

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings

PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Packages that transformers reports to each with; one of them is enough."""


def prepare_trackers(settings: Settings) -> None:
    """Have them write below the run's folder and without a network, unless somebody has said else.

    Raises: `ConfigurationError` for one whose package is not installed.
    """
    for tracker in settings.report_to:
        if not any(find_spec(package) for package in PACKAGES[tracker]):
            raise ConfigurationError(
                f"report_to names {tracker}, and the package {PACKAGES[tracker][0]} is not "
                f"installed: pip install it, or leave {tracker} out"
            )
    for name, value in (
        ("TENSORBOARD_LOGGING_DIR", settings.run_dir / "tensorboard"),
        ("TRACKIO_DIR", settings.run_dir / "trackio"),
        ("WANDB_DIR", settings.run_dir),
        ("WANDB_MODE", "offline"),
    ):
        if settings.report_to:
            os.environ.setdefault(name, str(value))
