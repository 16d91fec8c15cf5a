"""The published folder, and the only code that writes it.

Invariants:
* from `publish_base` on, a verified model is at the output path at every instant: each new one
  is written beside it, verified, flushed to disk, and swapped in by one rename (see `filesystem`
  for file systems without that call);
* after any failure the model published before is untouched and nothing is left in the way;
* hidden siblings of the output folder (`.NAME.staging-*`, `.NAME.previous`) belong to a publication
  in flight; those of a killed process are removed by the next one;
* a folder that no publisher wrote is refused, or moved aside to `.NAME.kept-*`, never deleted.
"""

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pydantic.dataclasses import dataclass
from safetensors import SafetensorError

from miner.config.contract import FIRST_FORMAT_DTYPE, ServedDtype
from miner.publishing import fresh_process
from miner.publishing.base_files import copy_base_model, put_chat_template
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.filesystem import (
    exclusive_lock,
    make_durable,
    replace_folder,
)
from miner.publishing.output_path import (
    PUBLICATION_FILE,
    check_replaceable,
    is_published,
    staging_prefix,
    stagings,
)
from miner.publishing.structure import ModelReport, check_structure, read_json
from miner.publishing.verify import verify_model

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """Publication record, beside the weights.

    Attributes:
        step: optimiser step it was saved after; 0 is the base model.
        score: mean held-out score in [0, 1], None if it was not evaluated.
        episodes: held-out episodes behind `score`.
    """

    step: int
    score: float | None = None
    episodes: int = 0


class Publisher:
    """Publishes to one output folder; one per run, in the main process, from one thread.

    Opening it makes the parent folder, and repairs and removes what a killed publisher left.

    Args:
        output_dir: the published folder.
        full_check: verify by loading the model; otherwise only structurally.
        in_process: load it in this process instead of a fresh one: seconds faster for a tiny model,
            but only where nothing patches model loading (DeepSpeed does).
        dtype: dtype in which the published model will be served.
        take_over: move other content aside, instead of refusing it.

    Raises: `PublishingError` if folders cannot be written there or another process publishes;
        `ConfigurationError` if the folder holds anything that was not published.
    """

    def __init__(
        self,
        output_dir: Path,
        *,
        full_check: bool = True,
        in_process: bool = False,
        dtype: ServedDtype = FIRST_FORMAT_DTYPE,
        take_over: bool = False,
    ) -> None:
        self._dtype: ServedDtype = dtype
        self.output_dir = output_dir.resolve()
        self._root = self.output_dir.parent
        self._full_check = full_check
        self._in_process = in_process
        if not take_over:
            check_replaceable(self.output_dir)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._check_file_system()
            with exclusive_lock(self._sibling("lock")):
                self._recover()
                self._keep_foreign_content()
        except OSError as error:
            raise PublishingError(
                f"cannot prepare {self.output_dir} for publishing: {error}; the miner needs to"
                f" create folders in {self._root}."
            ) from error

    def publish_base(self, model_path: Path, chat_template: str | None = None) -> None:
        """Publish the base model as it came: incomplete tokenizers are warnings, damage is not.

        Args:
            chat_template: put in place of the model's own; None keeps that one.

        Raises: `PublishingError`; `UnverifiedModelError` if the base model is damaged.
        """

        try:
            check_structure(model_path, strict=False, published=False)
        except UnverifiedModelError as error:
            raise UnverifiedModelError(f"the base model: {error} Download it again.") from error

        def save(folder: Path) -> None:
            copy_base_model(model_path, folder)
            if chat_template is not None:
                put_chat_template(folder, chat_template)

        self._publish(save, PublishedScore(step=0), strict=False)

    def publish(self, save: Callable[[Path], None], score: PublishedScore) -> None:
        """Publish the model that `save` writes into the empty folder it is given.

        Raises: `PublishingError` if it cannot be written (full disk), `UnverifiedModelError` if it
            is not fit for grading, and any error of `save`; the old model then stays.
        """
        self._publish(save, score, strict=True)

    def current(self) -> PublishedScore | None:
        """The record of the model at the output path, None if no publisher put one there."""
        try:
            return PublishedScore(**read_json(self.output_dir / PUBLICATION_FILE))
        except (UnverifiedModelError, TypeError, ValueError):
            return None

    def _publish(
        self, save: Callable[[Path], None], score: PublishedScore, *, strict: bool
    ) -> None:
        try:
            with exclusive_lock(self._sibling("lock")):
                self._recover()
                try:
                    report = self._replace(save, score, strict=strict)
                finally:
                    self._recover()
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self._root).free
            raise PublishingError(
                f"step {score.step} was not published: {error} ({free / 1e6:,.1f} MB are free in"
                f" {self._root} without it); {self.output_dir} holds what it held before."
            ) from error
        for warning in report.warnings:
            logger.warning("published model: %s", warning)
        logger.info("published %s, %s parameters", score, f"{report.parameters:,}")

    def _replace(
        self, save: Callable[[Path], None], score: PublishedScore, *, strict: bool
    ) -> ModelReport:
        staging = self._root / f"{staging_prefix(self.output_dir)}{secrets.token_hex(4)}"
        staging.mkdir()
        save(staging)
        record = json.dumps(asdict(score), indent=2) + "\n"
        (staging / PUBLICATION_FILE).write_text(record)
        report = self._verify(staging, strict=strict)
        make_durable(staging)
        replace_folder(staging, self.output_dir, aside=self._previous)
        return report

    def _verify(self, folder: Path, *, strict: bool) -> ModelReport:
        report = verify_model(folder, load=False, strict=strict)
        if not self._full_check:
            return report
        if self._in_process:
            return verify_model(folder, load=True, strict=strict, dtype=self._dtype)
        return fresh_process.verify(folder, strict=strict, dtype=self._dtype)

    def _check_file_system(self) -> None:
        if self.output_dir.is_mount():
            raise PublishingError(
                f"{self.output_dir} is a mount point and cannot be replaced as a whole: mount its"
                " parent folder instead."
            )

    def _sibling(self, purpose: str) -> Path:
        return self._root / f".{self.output_dir.name}.{purpose}"

    @property
    def _previous(self) -> Path:
        return self._sibling("previous")

    def _recover(self) -> None:
        """Undo an interrupted publication; afterwards only the published folder is left."""
        if self._previous.exists() and not self.output_dir.exists():
            os.rename(self._previous, self.output_dir)
            logger.warning("restored the model published before from an interrupted publication")
        for folder in (self._previous, *stagings(self.output_dir)):
            if folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
                if folder.exists():
                    logger.warning("could not remove all of %s", folder)

    def _keep_foreign_content(self) -> None:
        if not self.output_dir.exists() or is_published(self.output_dir):
            return
        if self.output_dir.is_dir() and not any(self.output_dir.iterdir()):
            return
        kept = self._sibling(f"kept-{secrets.token_hex(4)}")
        os.rename(self.output_dir, kept)
        logger.warning("%s held files of someone else: moved to %s", self.output_dir, kept)
