"""Where a run's episodes come from: rank 0 probes, checks and chooses, the others follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast

import torch
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.config.contract import DUEL_CHANNEL
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel.findings import look_at
from miner.duel.channel.opening import open_duels
from miner.duel.channel.opponents import is_model
from miner.environments import EnvironmentSource, InfrastructureError
from miner.environments.probe import open_source
from miner.environments.probe_report import Channel, ProbeReport
from miner.evaluation.channels import CHANNELS
from miner.reporting.run_folder import RunFolder

SERVER_PATIENCE_S = 60.0
"""How long environment servers may take to start."""


@contextmanager
def training_source(
    settings: Settings, loop: BackgroundLoop, console: Console, ranks: Ranks
) -> Iterator[EnvironmentSource]:
    """The source of episodes that settings and probe choose; the findings go to `probe.json`.

    Raises: `ConfigurationError`, `InfrastructureError`; `LeadFailedError` on the other ranks.
    """
    wanted = settings.environment
    if wanted.channel == DUEL_CHANNEL:
        with _duels(settings, loop, console, ranks) as source:
            yield source
        return
    if wanted.channel in CHANNELS:
        with _channel_source(settings, loop, console, ranks) as source:
            yield source
        return
    if not wanted.servers and wanted.channel != "builtin":
        raise ConfigurationError(
            "no environment server is named: set ENVIRONMENT_SERVER_URLS=http://host:port[,...], "
            "or environment.channel=builtin to play in this process"
        )
    games = cast("Channel | Literal['auto']", wanted.channel)
    opened: list[EnvironmentSource] = []

    def look() -> ProbeReport:
        source, report = loop.run(
            open_source(wanted.servers, games, wanted.name, patience_s=SERVER_PATIENCE_S)
        )
        opened.append(source)
        _tell(source, report, settings, console)
        return report

    try:
        report = ranks.lead_does(look)
        if not opened:
            source, _ = loop.run(open_source(wanted.servers, games, wanted.name, report=report))
            opened.append(source)
        with _said_twice(report.warning if wanted.channel == "auto" else "", console):
            yield opened[0]
    finally:
        for source in opened:
            loop.run(source.close())


@contextmanager
def _duels(
    settings: Settings, loop: BackgroundLoop, console: Console, ranks: Ranks
) -> Iterator[EnvironmentSource]:
    """Duels in this process: no server is asked, but the model has to be one that can play them."""
    wanted, model = settings.environment, settings.model.path
    assert model is not None  # it has been loaded from there
    _check_rivals(wanted.opponents)
    source = open_duels(
        model,
        wanted.games,
        wanted.opponents,
        published=settings.output.dir,
        parser=wanted.tool_parser,
    )

    def look() -> None:
        findings = look_at(model, wanted.games, source)
        RunFolder(settings.run_dir).write_probe(findings.to_json())
        console.print(findings.shown(), soft_wrap=True)

    try:
        ranks.lead_does(look)
        yield source
    finally:
        loop.run(source.close())


def _check_rivals(opponents: Sequence[str]) -> None:
    """Refuse models as opponents on GPUs: each rank would load one, and no memory plan has room.

    Raises: `ConfigurationError`.
    """
    models = [name for name in opponents if is_model(name)]
    if models and torch.cuda.is_available():
        raise ConfigurationError(
            f"environment.opponents names models ({', '.join(models)}), and no memory of a GPU is "
            "planned for them: name random, mcts:SIMULATIONS, teacher or strong, or train on a CPU"
        )


@contextmanager
def _channel_source(
    settings: Settings, loop: BackgroundLoop, console: Console, ranks: Ranks
) -> Iterator[EnvironmentSource]:
    """The source of a channel of `CHANNELS`; rank 0 checks it before anything is trained."""
    channel = CHANNELS[settings.environment.channel](settings.environment)
    source = loop.run(channel.open())

    def look() -> str:
        findings = loop.run(channel.check(source))
        found = findings.to_json()
        RunFolder(settings.run_dir).write_probe(found)
        console.print(findings.shown())
        return str(found.get("warning", ""))

    try:
        with _said_twice(ranks.lead_does(look), console):
            yield source
    finally:
        loop.run(source.close())


def _tell(
    source: EnvironmentSource, report: ProbeReport, settings: Settings, console: Console
) -> None:
    """Write and show what was found. Raises: `InfrastructureError` if no server is of any use."""
    channel = settings.environment.channel
    problems = [server.problem for server in report.servers]
    if problems and all(problems) and channel == "auto":
        raise InfrastructureError(
            f"no environment server can be used ({problems[0]}): start one, correct "
            "ENVIRONMENT_SERVER_URLS, or set environment.channel=builtin"
        )
    RunFolder(settings.run_dir).write_probe(report.to_json())
    if report.servers:
        console.print(report.shown())
    if channel != "auto":
        console.print(f"channel {source.name}, as environment.channel says", highlight=False)


@contextmanager
def _said_twice(warning: str, console: Console) -> Iterator[None]:
    """`warning` before and after what a person would have to scroll past."""
    if warning:
        console.print(f"WARNING: {warning}", style="bold red", markup=False, soft_wrap=True)
    yield
    if warning:
        console.print(f"WARNING: {warning}", style="bold red", markup=False, soft_wrap=True)
