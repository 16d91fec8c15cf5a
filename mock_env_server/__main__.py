"""Command line of the mock environment server: `python -m mock_env_server --help`."""

import logging
from collections.abc import Mapping
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mock_env_server.faults import FAULT_HELP, GAME_PATHS, FaultPlan
from mock_env_server.quirks import QUIRK_HELP, parse_quirks
from mock_env_server.serving import run
from mock_env_server.settings import Mode, ServerSettings

_EPILOG = """
[bold]Examples[/bold]

Play a round by hand ("4" bids card 5):

    python -m mock_env_server &
    curl localhost:8000/reset -d '{"task_id": 0, "seed": 0, "opponent": "random"}'
    curl localhost:8000/step -d '{"action": "4", "episode_id": "..."}'

A bad day: one answer in fifty is a 500, one in a hundred never comes, all take 20 ms longer:

    python -m mock_env_server --fault http_500=0.02 --fault hang=0.01 --latency 20

Change the weather while it runs:

    python -m mock_env_server --admin &
    curl -X PUT localhost:8000/admin/faults -d '{"rates": {"drop_reply": 0.1}}'
    curl -X DELETE localhost:8000/admin/faults
"""


def _listed(helps: Mapping[str, str]) -> str:
    return "".join(f"\n\n[bold]{name}[/bold]: {text}." for name, text in helps.items())


_FAULTS = "Faults on demand"
_OPTIONS = {
    "paths": "--fault-path",
    "rates": "--fault",
    "restart_after": "--restart-after",
}
"""Options by the field of `FaultPlan` that they set."""

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
ModeOption = Annotated[
    Mode,
    typer.Option(
        help="What /step does in Goofspiel. [bold]faithful[/bold]: what the real server does, "
        "which from round 2 on plays another card than asked (72% of the time). "
        "[bold]correct[/bold]: same prizes and opponent, the asked card. /evaluate is correct "
        "in both."
    ),
]
Quirks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A weakness of the real server to switch on; repeat for more, or [bold]all[/bold]."
        + _listed(QUIRK_HELP),
    ),
]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=RATE",
        help="What happens to this share of requests; repeat for more." + _listed(FAULT_HELP),
        rich_help_panel=_FAULTS,
    ),
]
FaultPath = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help=f"Path that faults and latency apply to; repeat. Default: {' '.join(GAME_PATHS)}.",
        rich_help_panel=_FAULTS,
    ),
]
LatencyOption = Annotated[
    float,
    typer.Option(
        min=0, metavar="MS", help="Hold each answer back so long.", rich_help_panel=_FAULTS
    ),
]
RestartAfter = Annotated[
    int | None,
    typer.Option(
        help="Lose all episodes each time so many requests have come.", rich_help_panel=_FAULTS
    ),
]
Admin = Annotated[
    bool,
    typer.Option(
        "--admin", help="Serve GET, PUT and DELETE /admin/faults.", rich_help_panel=_FAULTS
    ),
]


def main(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    mode: ModeOption = "faithful",
    quirks: Quirks = None,
    fault: Fault = None,
    fault_path: FaultPath = None,
    latency: LatencyOption = 0.0,
    restart_after: RestartAfter = None,
    admin: Admin = False,
) -> None:
    """A stand-in for the tournament's environment server, for tests and for training at home.

    Speaks the same HTTP API: /reset /step /state /stop /evaluate /call /health /methods.
    Equal (task_id, seed) give the same game as on the real server.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        plan = FaultPlan.model_validate(
            {
                "paths": fault_path or GAME_PATHS,
                "latency_ms": latency,
                "rates": _rates(fault or []),
                "restart_after": restart_after,
            }
        )
        chosen_quirks = parse_quirks(quirks or [])
    except ValueError as error:
        raise typer.BadParameter(_reason(error)) from error
    settings = ServerSettings(mode=mode, quirks=chosen_quirks, faults=plan, admin=admin)
    try:
        run(settings, host, port)
    except OSError as error:
        typer.echo(f"cannot listen on {host}:{port}: {error}. Try --port 0.", err=True)
        raise typer.Exit(1) from error


def _rates(pairs: list[str]) -> dict[str, str]:
    """Rates from NAME=RATE pairs. Raises: ValueError."""
    rates = {}
    for pair in pairs:
        name, equals, rate = pair.partition("=")
        if not equals:
            raise ValueError(f"fault {pair!r}: expected NAME=RATE, such as http_500=0.02")
        rates[name] = rate
    return rates


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(map(_problem, error.errors()))


def _problem(found: ErrorDetails) -> str:
    """One problem of a plan, named by its command-line option."""
    message = found["msg"].removeprefix("Value error, ")
    if not found["loc"]:  # a rule over several rates; it names them itself
        return message
    field, *inner = (str(part) for part in found["loc"] if part != "[key]")
    option = " ".join([_OPTIONS[field], *inner])
    if found["type"] == "value_error":  # our own sentence, which shows the value
        return f"{option}: {message}"
    return f"{option}: {message[0].lower()}{message[1:]}, not {found['input']!r}"


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command(epilog=_EPILOG)(main)

if __name__ == "__main__":
    app()
