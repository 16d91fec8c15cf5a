"""A league in a terminal: who won what, how surely, at what price, and who goes on."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from miner.duel.league import LeagueResult, Row
from miner.duel.outcome import Usage


def print_league(result: LeagueResult, console: Console) -> None:
    """Tables of all games, then standings, then what went wrong."""
    console.print(_games_table(result))
    console.print(_standings_table(result))
    for match in result.matches:
        if match.failure:
            console.print(
                f"[bold]{match.game}[/]: {match.first} against {match.second} broke off after "
                f"{len(match.games)} games: {match.failure}",
                highlight=False,
            )
    console.print(advice(result), highlight=False)


def advice(result: LeagueResult) -> str:
    """Who would advance, as a sentence."""
    going = result.advancing()
    if not going:
        return f"Nobody would advance: the boss {result.boss} is not beaten."
    verb = "would advance" if len(going) == 1 else "would advance, tied"
    return f"{' and '.join(going)} {verb}."


def price(usage: Usage) -> tuple[str, str, str]:
    """Tokens of a prompt, tokens of a reply, seconds: means over all requests."""
    requests = usage.turns + usage.reflections
    if not requests:
        return "-", "-", "-"
    tokens = (usage.prompt_tokens / requests, usage.tokens / requests)
    shown = [f"{mean:,.0f}" if mean else "-" for mean in tokens]
    return shown[0], shown[1], f"{usage.seconds / requests:.2g}"


def _games_table(result: LeagueResult) -> Table:
    table = Table(
        title="Games (score: wins + draws / 2, with a 95% interval)", title_justify="left"
    )
    table.add_column("game")
    table.add_column("player")
    for heading in ("won", "drawn", "lost"):
        table.add_column(heading, justify="right")
    for heading in ("score", "seat 0", "seat 1"):
        table.add_column(heading, no_wrap=True)
    table.add_column("forfeits")
    for heading in ("prompt", "reply", "s/turn"):
        table.add_column(heading, justify="right")
    for game in result.games:
        for number, player in enumerate(result.players):
            row = result.row(player, game)
            table.add_row(game if number == 0 else "", player, *_cells(row))
        table.add_section()
    return table


def _cells(row: Row) -> list[str]:
    scores = [str(score) if score else "-" for score in (row.score, *row.by_seat)]
    forfeits = ", ".join(f"{count} {cause}" for cause, count in row.forfeits.items())
    counts = [str(row.wins), str(row.draws), str(row.losses)]
    return [*counts, *scores, forfeits or "-", *price(row.usage)]


def _standings_table(result: LeagueResult) -> Table:
    table = Table(
        title="Standings (mean rank over the games; margins vanish)", title_justify="left"
    )
    table.add_column("player")
    table.add_column("task score", justify="right")
    for game in result.games:
        table.add_column(game, justify="right")
    scores = {game: result.environment_scores(game) for game in result.games}
    for player, score in result.standings():
        table.add_row(player, f"{score:.3f}", *(f"{scores[g][player]:.3f}" for g in result.games))
    return table
