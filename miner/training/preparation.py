"""Preparation before training, in one process and without a GPU: afterwards the settings are
sound and the base model is at the output path.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from miner.config.channel_facts import FACTS
from miner.config.control_groups import total_memory
from miner.config.errors import ConfigurationError, base_folder
from miner.config.heartbeat import HeartbeatWriter
from miner.config.held_out_games import few_gated
from miner.config.run_files import BEST_FILE, PUBLICATION_FILE, write_atomically
from miner.config.settings import Settings
from miner.duel.channel.opponents import Opponents
from miner.duel.own import taught_by
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.output_path import check_apart, check_replaceable
from miner.publishing.publisher import Publisher
from miner.publishing.structure import check_structure
from miner.rewards.own_credit import load_credit
from miner.rollout.model_folder import check_model_folder, load_chat
from miner.training.episodes import task_stream
from miner.training.run_dir import check_foreign, prepare_run_dir

logger = logging.getLogger(__name__)


def prepare_run(settings: Settings, *, in_process: bool) -> None:
    """Check the run folder, publish the base model if nothing better is there, check the model.

    The base is published even if nothing can be trained with it: first as it came, then with the
    chat template that it is played with, where its own cannot hold a game.

    Args:
        in_process: see `Publisher`.

    Raises: `ConfigurationError`, `PublishingError`.
    """
    base, output = checked_paths(settings)
    check_memory(settings)
    if not settings.output.take_over:
        _check_own(settings)
    prepare_trackers(settings)
    warn_of_gate(settings)
    prepare_run_dir(settings)
    heartbeat = HeartbeatWriter(settings.run_dir)
    beat = partial(heartbeat.beat, "publishing the base model")
    beat()
    publisher = Publisher(
        output,
        in_process=in_process,
        dtype=FACTS[settings.environment.channel].served_dtype,
        take_over=settings.output.take_over,
    )
    best = settings.run_dir / BEST_FILE
    if publisher.current() is None or not best.exists() or not _is_whole(output):
        best.unlink(missing_ok=True)
        began = time.monotonic()
        publish_base(publisher, base, beat)
        with suppress(OSError):  # a full disk: a guess stands in for it
            write_atomically(settings.run_dir / PUBLICATION_FILE, f"{time.monotonic() - began}")
    else:
        load_chat(base)
    if settings.output.take_over:
        _check_own(settings)


def _is_whole(folder: Path) -> bool:
    """Return false where files of a published model are gone or cut off, by their headers.

    Raises: `OSError` for one that cannot be read now.
    """
    try:
        check_structure(folder, strict=False, published=False)
    except UnverifiedModelError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise cause from None
        logger.warning("the base model is published again: %s", error)
        return False
    return True


def _check_own(settings: Settings) -> None:
    """Find a mistake in the user's class and functions, or in mounted data.

    On a laptop a start that is refused leaves nothing behind; in a container the base lies at the
    output path before anything is read that is not ours, and may be more than the memory holds.
    """
    tasks = task_stream(settings.environment)
    tasks.held_out(settings.evaluation.episodes, settings.evaluation.base_seed)
    if settings.reward.entry:
        load_credit(settings.reward.entry)
    taught_by(settings.demonstrations.teacher)
    if FACTS[settings.environment.channel].duels:
        base, output = base_folder(settings.model.path), settings.output.dir
        opponents = Opponents(settings.environment.games, base, output)
        for opponent in settings.environment.opponents:
            opponents.check(opponent)


def publish_base(publisher: Publisher, base: Path, beat: Callable[[], None] = lambda: None) -> None:
    """Publish `base` as it came, then with a template that holds a game if its own does not.

    Args:
        beat: called before the second, since on a slow disk each takes minutes.

    Raises: `PublishingError`; `ConfigurationError` where it cannot be talked to, once it lies there
        as it came.
    """
    publisher.publish_base(base)
    chat = load_chat(base)
    if chat.fixed_template is not None:
        for change in chat.changes:
            logger.warning("the base model's chat template is fixed: %s", change)
        beat()
        publisher.publish_base(base, chat.fixed_template)


def checked_paths(settings: Settings) -> tuple[Path, Path]:
    """The base model's folder and the output path.

    Raises: `ConfigurationError` if one is missing, publishing would replace a folder in use, or
        run_dir holds another tool's files.
    """
    base, output = base_folder(settings.model.path), settings.output.dir
    check_model_folder(base, named="model.path ")
    if output is None:
        raise ConfigurationError("output.dir is not set: name the folder to publish the model to")
    check_apart(output, base, settings.run_dir)
    if not settings.output.take_over:
        check_replaceable(output)
        check_foreign(settings.run_dir)
    return base, output


def warn_of_gate(settings: Settings) -> None:
    """Warn where the gate cannot let a model pass that plays some game as its base does."""
    environment = settings.environment
    if FACTS[environment.channel].duels and (
        why := few_gated(settings.evaluation.episodes, len(set(environment.games)))
    ):
        logger.warning(why)


EPISODE_BYTES = 8 << 10
"""At least, of an episode in play: its environment, its tasks on the event loop, its messages."""

TOKEN_BYTES = 48
"""At least: token id, mask and log-probability as list items, and the float."""

USUAL_TOKENS = 256
"""Assumed of an episode where `rollout.max_episode_tokens` is not set: fewer than any game has."""


def check_memory(settings: Settings, root: Path = Path("/")) -> None:
    """Raise `ConfigurationError` if the episodes of a step or an evaluation cannot be held.

    A lower bound, for numbers that cannot be meant: a step that passes may still be too large.

    Args:
        root: of the file system that shows the machine's memory, and the container's.
    """
    total = total_memory(root)
    each = EPISODE_BYTES + TOKEN_BYTES * (settings.rollout.max_episode_tokens or USUAL_TOKENS)
    counts = {
        "rollout.group_size or rollout.groups_per_step": settings.episodes_per_step,
        "evaluation.episodes": settings.evaluation.episodes,
    }
    for name, count in counts.items():
        if count * each > total:
            raise ConfigurationError(
                f"{count:,} episodes at once take {count * each / 1e9:,.0f} GB at least, and there "
                f"are {total / 1e9:,.0f}: lower {name}"
            )


PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Packages that transformers reports to each with; one of them is enough."""


def prepare_trackers(settings: Settings) -> None:
    """Have them write below the run's folder and without a network, unless set otherwise.

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
