"""A league in a terminal: scores with intervals, costs, and who would advance."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from miner.duel.league import LeagueResult
from miner.duel.outcome import Usage
from miner.evaluation.statistics import Estimate


def print_league(result: LeagueResult, console: Console) -> None:
    """Tables of all games, then standings, then what went wrong."""
    console.print("Won-drawn-lost, and score (wins + draws / 2) with its 95% interval")
    console.print(_games_table(result))
    if (prices := _price_table(result)) is not None:
        console.print("Forfeits, and means over requests: tokens of prompt and reply, seconds")
        console.print(prices)
    console.print(
        "Standings: mean rank over the games (the size of a lead does not count), and scores"
    )
    console.print(_standings_table(result))
    for match in result.matches:
        if match.failure:
            console.print(
                f"{match.game}: {match.first} against {match.second} broke off after "
                f"{len(match.games)} games: {match.failure}",
                highlight=False,
                markup=False,
            )
    console.print(advice(result), highlight=False, markup=False)


def advice(result: LeagueResult) -> str:
    """A sentence on who would advance."""
    if not result.played:
        return "No player would advance: no match counts."
    going = result.advancing()
    if not going:
        return f"No player would advance: the boss {result.boss} is not beaten."
    verb = "would advance" if len(going) == 1 else "would advance, tied"
    return f"{' and '.join(going)} {verb}."


def price(usage: Usage) -> tuple[str, str, str]:
    """Tokens of a prompt, tokens of a reply, seconds: means over all requests."""
    requests = usage.turns + usage.reflections
    if not requests:
        return "-", "-", "-"
    tokens = (usage.prompt_tokens / requests, usage.tokens / requests)
    shown = [f"{mean:,.0f}" if mean else "-" for mean in tokens]
    seconds = usage.seconds / requests
    return shown[0], shown[1], f"{seconds:.2f}" if seconds >= 0.01 else "<0.01"


def _games_table(result: LeagueResult) -> Table:
    table = _table()
    table.add_column("player", overflow="fold")
    for heading in ("games", "score", "seat 0", "seat 1"):
        table.add_column(heading, no_wrap=True)
    for game in result.games:
        table.add_row(f"[bold]{game}[/]")
        for player, _ in result.standings():
            row = result.row(player, game)
            scores = [_short(score) for score in (row.score, *row.by_seat)]
            table.add_row(escape(player), f"{row.wins}-{row.draws}-{row.losses}", *scores)
        table.add_section()
    return table


def _price_table(result: LeagueResult) -> Table | None:
    """Forfeits, and what a request costs, for players that forfeit or read prompts."""
    table = _table()
    for heading in ("player", "game", "forfeits"):
        table.add_column(heading, overflow="fold")
    for heading in ("prompt tokens", "reply tokens", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for player in result.players:
        for game in result.games:
            row = result.row(player, game)
            if row.forfeits or row.usage.prompt_tokens:
                causes = ", ".join(f"{count} {cause}" for cause, count in row.forfeits.items())
                table.add_row(escape(player), game, causes or "-", *price(row.usage))
    return table if table.row_count else None


def _short(score: Estimate | None) -> str:
    return f"{score.mean:.2f} ({score.low:.2f}-{score.high:.2f})" if score else "-"


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False)


def _standings_table(result: LeagueResult) -> Table:
    table = _table()
    table.add_column("player", overflow="fold")
    table.add_column("rank", justify="right")
    for game in result.games:
        table.add_column(game.partition("_")[0], justify="right")
    scores = {game: result.environment_scores(game) for game in result.played}
    for player, score in result.standings():
        shown = [f"{scores[game][player]:.3f}" if game in scores else "-" for game in result.games]
        table.add_row(escape(player), f"{score:.3f}", *shown)
    return table
