"""The league as one page without any other file: standings, picture, games, replays."""

from typing import Any

from miner.duel.league import LeagueResult
from miner.duel.match import MatchResult
from miner.duel.memory import SLOTS, WORKING
from miner.duel.outcome import GameRecord
from miner.duel.report.figure import game_title, league_figure
from miner.duel.report.scenes import frames
from miner.duel.report.tables import advice, price
from miner.reporting.replay_page import in_script
from miner.reporting.style import svg_of
from miner.reporting.templates import render


def league_page(result: LeagueResult, settings: dict[str, Any], replays: int) -> str:
    """The page, with up to `replays` games of each match to step through."""
    shown = [
        _replay(match, record) for match in result.matches for record in _chosen(match, replays)
    ]
    order = [name for name, _ in result.standings()]
    return render(
        "league.html.j2",
        result=result,
        rows={game: [result.row(name, game) for name in order] for game in result.games},
        title=game_title,
        price=price,
        advice=advice(result),
        figure=svg_of(league_figure(result)),
        settings=settings,
        replays=in_script(shown),
        replay_names=[replay["name"] for replay in shown],
        working_slots=SLOTS[WORKING],
    )


def _chosen(match: MatchResult, count: int) -> list[GameRecord]:
    """Games to show: long ones that were decided on the board first, then forfeits."""
    with_moves = [record for record in match.games if record.plies]
    decided = [record for record in with_moves if record.forfeit is None]
    decided.sort(key=lambda record: -len(record.plies))
    return [*decided, *(record for record in with_moves if record.forfeit)][:count]


def _replay(match: MatchResult, record: GameRecord) -> dict[str, Any]:
    seats = [match.first, match.second]
    if record.first_seat == 1:
        seats.reverse()
    winner = {"win": match.first, "loss": match.second, "draw": None}[record.result]
    outcome = f"{winner} wins" if winner else "draw"
    if record.forfeit is not None:
        forfeited = seats[record.forfeit.player]
        outcome += f": {forfeited} forfeits ({record.forfeit.cause.value})"
    return {
        "name": f"{game_title(match.game)}: {match.first} against {match.second}, "
        f"seed {record.seed}, {outcome}",
        "game": match.game,
        "seats": seats,
        "outcome": outcome,
        "frames": frames(record),
    }
