"""Episodes of a run: its tasks, the source that plays them, and how long they may be."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console

from miner.background_loop import BackgroundLoop, unless
from miner.channels.registry import make_channel
from miner.channels.served import BUILTIN
from miner.config.channel_facts import FACTS
from miner.config.errors import ConfigurationError
from miner.config.run_files import BEST_FILE
from miner.config.settings import EnvironmentSettings, Settings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentSource, EpisodeTask, InfrastructureError, TaskStream
from miner.environments.findings import Findings
from miner.environments.probe_report import ProbeReport
from miner.reporting.run_folder import RunFolder
from miner.rollout.episode import RolloutStopped, never
from miner.rollout.renderer import ChatRenderer

logger = logging.getLogger(__name__)


def task_stream(settings: EnvironmentSettings) -> TaskStream:
    """The tasks of `environment.channel`. Raises: `ConfigurationError`."""
    return make_channel(settings).tasks


def training_dataset(settings: Settings) -> Dataset:
    """One row per task for all planned steps; TRL repeats each row `group_size` times.

    A task is made when its row is read: a job plans many more steps than it has time for.
    """
    games = settings.optimizer.max_steps * settings.rollout.groups_per_step
    if games > 5_000_000:
        raise ConfigurationError(
            f"optimizer.max_steps x rollout.groups_per_step is {games:,} games: at most 5,000,000 "
            "are planned ahead; lower optimizer.max_steps"
        )
    return Dataset.from_dict({"index": range(games)}).with_transform(_Prompts(settings))


class _Prompts:
    """Rows with the tasks of their indices."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks = task_stream(settings.environment)

    def __call__(self, rows: dict[str, list[int]]) -> dict[str, list[str]]:
        tasks = (self._tasks.training(index, self._settings.seed) for index in rows["index"])
        return {"prompt": [encode_task(task) for task in tasks]}

    def __reduce__(self) -> tuple[Any, ...]:
        """The settings alone: a data set is hashed by its pickle, and the tasks may be all
        conversations of a recorded one."""
        return _Prompts, (self._settings,)


def encode_task(task: EpisodeTask) -> str:
    """A task as the text that travels through TRL's `prompt` column."""
    return json.dumps(asdict(task), sort_keys=True)


def decode_task(prompt: str) -> EpisodeTask:
    """The inverse of `encode_task`."""
    return EpisodeTask(**json.loads(prompt))


SERVER_PATIENCE_S = 60.0
"""Longest wait for environment servers to start."""

RESUMED_PATIENCE_S = 400.0
"""The same for a run that cannot go on without them; the watchdog bears 900 s of silence."""


@contextmanager
def training_source(
    settings: Settings,
    loop: BackgroundLoop,
    console: Console,
    ranks: Ranks,
    stopped: Callable[[], bool] = never,
) -> Iterator[EnvironmentSource]:
    """The source of `environment.channel`; the findings of its check go to `probe.json`.

    Raises: `ConfigurationError`; `InfrastructureError` also where a run that has begun on servers
        would go on without them; `LeadFailedError` on the other ranks; `RolloutStopped` on all if
        rank 0 is `stopped` during the check.
    """
    channel = make_channel(settings.environment, settings.model.path, settings.output.dir)
    channel.refuse_training()
    opened: list[EnvironmentSource] = []

    def look() -> Findings | None:
        began_on = _base_channel(settings.run_dir)
        patience = RESUMED_PATIENCE_S if _on_servers(began_on) else SERVER_PATIENCE_S
        known = _learned_before(settings)
        opened.append(loop.run(channel.open(known, patience_s=patience)))
        findings = loop.run(unless(stopped, channel.check(opened[0])))
        if findings is None:
            return None
        if began_on and opened[0].name != settings.environment.channel:  # the probe's choice
            _check_same_prompts(began_on, opened[0].name, findings)
        RunFolder(settings.run_dir).write_probe(findings.to_json())
        console.print(findings.shown(), soft_wrap=True)
        return findings

    try:
        findings = ranks.lead_does(look)
        if findings is None:
            raise RolloutStopped
        if not opened:
            opened.append(loop.run(channel.open(findings)))
        with _warned(findings, console):
            yield opened[0]
    finally:
        for source in opened:
            loop.run(source.close())


def _learned_before(settings: Settings) -> Findings | None:
    """The prompts of servers that an earlier attempt probed, for their game in this process."""
    environment = settings.environment
    if environment.channel != BUILTIN or environment.servers:
        return None
    stored = RunFolder(settings.run_dir).read_probe()
    report = ProbeReport.of_earlier(stored, environment.name)
    return report.findings(BUILTIN) if report else None


def _on_servers(source: str | None) -> bool:
    facts = FACTS.get(source or "")
    return facts is not None and facts.asks_servers


def _base_channel(run_dir: Path) -> str | None:
    """The channel of the base's held-out games; None before they were played."""
    if not (run_dir / BEST_FILE).exists():
        return None
    evaluations, _ = RunFolder(run_dir).evaluations.read()
    return next((record.channel for record in evaluations if record.step == 0), None)


def _check_same_prompts(began_on: str, name: str, found: Findings) -> None:
    """Refuse to continue a run whose scores are of a server's prompts with the builtin game's.

    The base's held-out games would be compared with games of other prompts.
    Raises: `InfrastructureError`.
    """
    before, now = _on_servers(began_on), _on_servers(name)
    if before and not now:
        raise InfrastructureError(
            f"the base of this run was evaluated on the channel {began_on}, and its servers cannot "
            f"play any more ({found.reason}): start them again, or set environment.channel=builtin"
        )
    if now and not before:
        logger.warning(
            "the base of this run was evaluated by the builtin game, and is compared with games on "
            "the channel %s from now on: begin another run for scores of equal prompts", name,
        )  # fmt: skip


@contextmanager
def _warned(found: Findings, console: Console) -> Iterator[None]:
    """Print the warning before, and what is to be repeated after all that would have to be scrolled
    past."""
    _print_warning(found.warning, console)
    yield
    _print_warning(found.warning if found.repeated is None else found.repeated, console)


def _print_warning(warning: str, console: Console) -> None:
    if warning:
        console.print(f"WARNING: {warning}", style="bold red", markup=False, soft_wrap=True)


TASKS_TRIED = 40
"""First tasks of the stream: all deck sizes and both seats are among them."""

MARGIN = 1.1
"""A server may word its turns at greater length than we do (1.02 times, as recorded)."""


def with_episode_limit(settings: Settings, renderer: ChatRenderer, context: int) -> Settings:
    """The settings with `rollout.max_episode_tokens` filled in.

    A limit that the user or the plan has set stays, and is warned about where games may exceed it:
    such episodes are lost and nothing is learned from them. Channels that do not know their lengths
    have the model's context for a limit.

    Args:
        context: tokens that the model can attend to.

    Raises: `ConfigurationError` where the context has no room for even the shortest game.
    """
    given = settings.rollout.max_episode_tokens
    channel = make_channel(settings.environment)
    tasks = [channel.tasks.training(i, settings.seed) for i in range(TASKS_TRIED)]
    lengths = channel.lengths(tasks, renderer)
    if lengths is None:
        return _with_limit(settings, context if given is None else min(context, given))
    if context < lengths.shortest:
        raise ConfigurationError(
            f"the model's context of {context:,} tokens has no room for a game: the shortest takes "
            f"{lengths.shortest:,}, so that nothing can be learned; the base is published as it "
            "is"
        )
    replies = lengths.replies * settings.rollout.max_reply_tokens
    longest = math.ceil(lengths.longest * MARGIN) + replies
    limit = min(context, longest if given is None else given)
    if limit < longest:
        cause = "the model's context" if limit == context else "rollout.max_episode_tokens"
        logger.warning(
            "games may take up to %d tokens, but %s allows %d: longer ones are lost, and are never "
            "learned from",
            longest, cause, limit,
        )  # fmt: skip
    return _with_limit(settings, limit)


def _with_limit(settings: Settings, limit: int) -> Settings:
    rollout = settings.rollout.model_copy(update={"max_episode_tokens": limit})
    return settings.model_copy(update={"rollout": rollout})
