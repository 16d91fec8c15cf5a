"""The source of a run's episodes: rank 0 opens and checks it, the others follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.channels.base import Findings
from miner.channels.registry import make_channel
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentSource
from miner.reporting.run_folder import RunFolder

SERVER_PATIENCE_S = 60.0
"""How long environment servers may take to start."""


@contextmanager
def training_source(
    settings: Settings, loop: BackgroundLoop, console: Console, ranks: Ranks
) -> Iterator[EnvironmentSource]:
    """The source of `environment.channel`; the findings of its check go to `probe.json`.

    Raises: `ConfigurationError`, `InfrastructureError`; `LeadFailedError` on the other ranks.
    """
    channel = make_channel(settings.environment, settings.model.path, settings.output.dir)
    channel.refuse_training()
    opened: list[EnvironmentSource] = []

    def look() -> Findings:
        opened.append(loop.run(channel.open(patience_s=SERVER_PATIENCE_S)))
        findings = loop.run(channel.check(opened[0]))
        RunFolder(settings.run_dir).write_probe(findings.to_json())
        console.print(findings.shown(), soft_wrap=True)
        return findings

    try:
        findings = ranks.lead_does(look)
        if not opened:
            opened.append(loop.run(channel.open(findings)))
        with _printed_twice(findings.warning, console):
            yield opened[0]
    finally:
        for source in opened:
            loop.run(source.close())


@contextmanager
def _printed_twice(warning: str, console: Console) -> Iterator[None]:
    """Print `warning` before and after all that would have to be scrolled past."""
    if warning:
        console.print(f"WARNING: {warning}", style="bold red", markup=False, soft_wrap=True)
    yield
    if warning:
        console.print(f"WARNING: {warning}", style="bold red", markup=False, soft_wrap=True)
