"""`python -m miner probe`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from miner.channels.registry import channel_settings, make_channel
from miner.config.contract import SERVERS_VARIABLE, split_server_urls
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.environments.errors import InfrastructureError
from miner.environments.probe import probe

if TYPE_CHECKING:
    from miner.channels.base import Findings

EnvUrls = Annotated[
    list[str] | None,
    typer.Option(help="An environment server; may be repeated. Else ENVIRONMENT_SERVER_URLS."),
]
Game = Annotated[str, typer.Option(help="The game to probe with.")]
Entry = Annotated[
    str | None, typer.Option(help="A class of your own in place of servers: guess.py:Guess.")
]
ModelFolder = Annotated[
    Path | None,
    typer.Option(help="A model folder in place of servers: can it play today's duels?"),
]
OpenEnv = Annotated[
    str | None,
    typer.Option(
        help="An OpenEnv server in place of the tournament's: http://host:port, or a file that "
        "serves one here, such as examples/openenv/echo.py."
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="As for training, with --entry and --openenv; max_turns=1 will do for "
        "environment.openenv.max_turns=1.",
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the findings here; - for standard output.")
]
Limit = Annotated[
    float, typer.Option(min=0.5, help="Seconds that a server has to answer, per kind of question.")
]


def probe_command(
    env_url: EnvUrls = None,
    environment: Game = "goofspiel",
    entry: Entry = None,
    model: ModelFolder = None,
    openenv: OpenEnv = None,
    setting: Setting = None,
    json_file: JsonFile = None,
    limit: Limit = 5.0,
) -> None:
    """Find out what environment servers really do, and which channel to train on.

    Plays a few games on each: is the card asked for the card that is played (/step)? Can the
    server reach this machine for graded games (/evaluate)? How does the grader word its prompts?

    With --entry, look at an environment of your own: does a seed always give the same episode,
    also side by side with others? Do episodes end, with scores in their range?

    With --model, look at a model that is to play duels: how its tool calls will be read, whether
    its chat template shows the tools, how long a turn of each game becomes in its tokens.

    With --openenv, look at an OpenEnv server: how does a reply become an action, does the seed
    decide about the game, how many sessions does it take, what are its rewards?

    Examples:
      python -m miner probe --env-url http://127.0.0.1:8000
      python -m miner probe --entry examples/guess.py:Guess
      python -m miner probe --model MODEL
      python -m miner probe --openenv URL --set max_turns=1
    """
    if (named := _channel(entry, model, openenv, limit)) is not None:
        channel, values = named
        settings = channel_settings(channel, setting or (), **values)
        _tell(asyncio.run(_checked(settings, model, openenv)), json_file)
    else:
        urls = env_url or split_server_urls(os.environ.get(SERVERS_VARIABLE, ""))
        if not urls:
            raise ConfigurationError(
                "no environment server is named: give --env-url http://host:port, or set "
                f"{SERVERS_VARIABLE}; `python -m mock_env_server` starts one"
            )
        report = asyncio.run(probe(urls, environment, limit_s=limit))
        _tell(report, json_file)
        if report.channel == "builtin":
            raise InfrastructureError(
                "none of the servers can be trained on: start one (python -m mock_env_server), "
                "correct the URL, or train in this process with environment.channel=builtin"
            )


def _channel(
    entry: str | None, model: Path | None, openenv: str | None, limit: float
) -> tuple[str, dict[str, Any]] | None:
    """The channel that an option names, and its settings; None where servers are to be asked."""
    if model is not None:
        return "duel", {}
    if openenv is not None:
        return "openenv", _openenv_place(openenv, limit)
    return None if entry is None else ("own", {"entry": entry})


def _openenv_place(place: str, limit: float) -> dict[str, Any]:
    """`environment` settings for a server's URL, or for the file that serves one here.

    Who asks about a server that should be there waits for it for seconds, not for a minute.
    """
    if place.partition(":")[0].endswith(".py"):
        return {"openenv": {"app": place}}
    return {"servers": [place], "openenv": {"start_seconds": limit}}


def _say(line: str) -> None:
    """At once, and not among the findings."""
    typer.echo(line, err=True)


async def _checked(
    settings: EnvironmentSettings, model: Path | None, openenv: str | None
) -> Findings:
    """The findings of a channel's check; the wait for an OpenEnv server is announced."""
    own = settings.openenv
    if openenv is not None:
        _say(f"waiting for {openenv} to answer, up to {own.start_seconds:g} s")
    channel = make_channel(settings, model)
    source = await channel.open()
    if openenv is not None:
        _say(
            f"{openenv} answers: playing a few episodes; it has {own.reply_seconds:g} s for each "
            "of its replies (environment.openenv.reply_seconds)"
        )
    try:
        return await channel.check(source)
    finally:
        await source.close()


def _tell(findings: Findings, json_file: Path | None) -> None:
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
