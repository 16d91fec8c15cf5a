"""`python -m miner probe`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from miner.channels.registry import make_channel
from miner.config.contract import SERVERS_VARIABLE
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings, Settings
from miner.environments.errors import InfrastructureError
from miner.environments.probe import probe

if TYPE_CHECKING:
    from miner.environments.findings import Findings


def probe_command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as for train.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the findings here; - for standard output."),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(min=0.5, help="Seconds that a server has to answer, per kind of question."),
    ] = 5.0,
) -> None:
    """Find out what environment servers really do, and which channel to train on.

    Plays a few games on each of environment.servers (or ENVIRONMENT_SERVER_URLS): is the card asked
    for the card that is played (/step)? Can the server reach this machine for graded games
    (/evaluate)? How does the grader word its prompts?

    environment.channel=own: does a seed of your class always give the same episode, also side by
    side with others? Do episodes end, with scores in their range?

    environment.channel=duel: how will the tool calls of model.path be read, does its chat template
    show the tools, how long does a turn of each game become in its tokens?

    environment.channel=openenv: how does a reply become an action, does the seed decide about the
    game, how many sessions does the server take, what are its rewards?

    Examples:
      python -m miner probe environment.servers=http://127.0.0.1:8000
      python -m miner probe environment.channel=own environment.entry=examples/guess.py:Guess
      python -m miner probe environment.channel=duel model.path=MODEL
      python -m miner probe environment.channel=openenv environment.servers=URL
    """
    settings = _impatient(Settings.load(config, overrides or ()), limit)
    environment = settings.environment
    app = environment.openenv.app
    if environment.channel == "openenv" and app and not Path(app.partition(":")[0]).is_file():
        raise ConfigurationError(
            f"environment.openenv.app={app}: there is no such file; name one that serves an "
            "environment, such as examples/openenv/echo.py"
        )
    if environment.channel != "auto":
        _print(asyncio.run(_checked(environment, settings.model.path)), json_file)
        return
    if not environment.servers:
        raise ConfigurationError(
            "no environment server is named: give environment.servers=http://host:port, or set "
            f"{SERVERS_VARIABLE}; `python -m mock_env_server` starts one"
        )
    report = asyncio.run(probe(environment.servers, environment.name, limit_s=limit))
    _print(report.findings(), json_file)
    if report.channel == "builtin":
        raise InfrastructureError(
            "none of the servers can be trained on: start one (python -m mock_env_server), "
            "correct the URL, or train in this process with environment.channel=builtin"
        )


def _impatient(settings: Settings, limit: float) -> Settings:
    """With `limit` seconds for an OpenEnv server that should run already, if none are set."""
    own = settings.environment.openenv
    if own.app or "start_seconds" in own.model_fields_set:
        return settings
    return settings.having(environment={"openenv": {"start_seconds": limit}})


async def _checked(settings: EnvironmentSettings, model: Path | None) -> Findings:
    """The findings of a channel's check; the wait for an OpenEnv server is announced."""
    channel = make_channel(settings, model)
    if settings.channel == "openenv":
        own = settings.openenv
        typer.echo(
            f"waiting for {own.app or ', '.join(settings.servers)} to answer, up to "
            f"{own.start_seconds:g} s, and up to {own.reply_seconds:g} s for each of its replies",
            err=True,
        )
    source = await channel.open()
    try:
        return await channel.check(source)
    finally:
        await source.close()


def _print(findings: Findings, json_file: Path | None) -> None:
    text = json.dumps(findings.to_json(), indent=2)
    if json_file is not None and str(json_file) == "-":
        typer.echo(text)
        return
    console = Console()
    console.print(findings.shown(), soft_wrap=True)
    if findings.warning:
        console.print(f"WARNING: {findings.warning}", markup=False, soft_wrap=True)
    if json_file is not None:
        json_file.write_text(text + "\n")
