"""A league from the command line: makes players, plays, prints and writes its files."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from miner.config.contract import DUEL_BOARDS, DUEL_CARDS
from miner.config.errors import ConfigurationError
from miner.duel.league import LeagueResult, play_league
from miner.duel.match import Limits, MatchResult
from miner.duel.outcome import GameRecord
from miner.duel.play import Rules
from miner.duel.players.base import Player
from miner.duel.players.catalog import chosen_games, make_player
from miner.duel.report.figure import league_figure
from miner.duel.report.page import league_page
from miner.duel.report.tables import print_league
from miner.duel.tournament_files import wording_of
from miner.environments.errors import InfrastructureError
from miner.reporting.progress import print_line
from miner.reporting.style import save_figure, styled

LINE_EVERY_S = 15.0
"""Without a terminal, a match that takes longer prints how far it is."""


async def run_session(
    specifications: Sequence[str],
    games: str | None,
    limits: Limits,
    seed: int,
    *,
    prompts: Path | None,
    replays: int,
    out: Path,
    boss: str | None = None,
    sizes: str | None = None,
) -> LeagueResult:
    """Play, print, and write `league.json`, `league.png` and `league.html`: see `miner.cli.duel`.

    Interrupted, it writes what was played.

    Raises: `ConfigurationError` for players, games or sizes that there are not,
        `InfrastructureError` where not one game could be played.
    """
    if len(specifications) < 2:
        raise ConfigurationError("a league needs two players: name another one")
    chosen = chosen_games(games)
    wording = wording_of(prompts)
    chosen_sizes = _sizes(sizes)
    rules = Rules(seed, wording, sizes=chosen_sizes, keep_plies=replays > 0)
    console = Console()
    async with AsyncExitStack() as stack:
        players = []
        for seat, specification in enumerate(specifications):
            player = make_player(specification, chosen, seat=seat)
            stack.push_async_callback(player.close)
            players.append(player)
        result = await _play(players, chosen, rules, limits, boss, console)
    played = sum(len(match.games) for match in result.matches)
    if result.interrupted:
        print_line(console, f"interrupted: {played} games were over, all else is of these")
    if not played:
        _check_refused(result)
        if result.interrupted:
            return result
        failures = dict.fromkeys(match.failure for match in result.matches if match.failure)
        raise InfrastructureError(f"not one game was played: {'; '.join(failures)}")
    print_league(result, console)
    settings: dict[str, Any] = {
        "evaluation seed": seed,
        "most minutes a match": round(limits.seconds / 60, 2),
        "most pairs of games a match": limits.pairs or "unlimited",
        "prompts": f"in {wording.described}",
    }
    if sizes is not None:
        settings["sizes"] = ", ".join(map(str, chosen_sizes))
    page = _write(result, settings, replays, out)
    if wording.is_own:
        print_line(
            console,
            "Prompts are in our own words; the tournament's: python -m miner prompts --help",
        )
    print_line(console, f"Look at {page}")
    _check_refused(result)
    return result


def _check_refused(result: LeagueResult) -> None:
    """Raises: `ConfigurationError` of the first match for which something has to be corrected."""
    for match in result.matches:
        if match.refused:
            raise ConfigurationError(match.failure)


async def _play(
    players: Sequence[Player],
    games: Sequence[str],
    rules: Rules,
    limits: Limits,
    boss: str | None,
    console: Console,
) -> LeagueResult:
    matches = len(games) * len(players) * (len(players) - 1) // 2
    most = 2 * limits.pairs if limits.pairs else None
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("playing", total=matches * most if most else None)

        counts: Counter[tuple[str, str, str]] = Counter()
        printed_at = time.monotonic()

        def on_game(first: str, second: str, record: GameRecord) -> None:
            nonlocal printed_at
            progress.update(bar, advance=1, description=f"{record.game}: {first}, {second}")
            counts[key := (record.game, first, second)] += 1
            if not console.is_terminal and time.monotonic() - printed_at > LINE_EVERY_S:
                printed_at = time.monotonic()
                of = f" of {most}" if most else ""
                print_line(
                    console, f"{record.game}: {first} against {second}: {counts[key]}{of} games"
                )

        def on_match(match: MatchResult) -> None:
            unplayed = max(0, most - len(match.games)) if most else 0
            progress.update(bar, advance=unplayed)
            if not console.is_terminal:
                print_line(console, _line(match))

        return await play_league(
            players, games, rules, limits, boss=boss, on_game=on_game, on_match=on_match
        )


def _sizes(named: str | None) -> tuple[int | str, ...]:
    """Decks and boards with commas between them; of a game with none among them all."""
    wanted = [part.strip() for part in named.split(",")] if named else []
    chosen: list[int | str] = []
    games: tuple[Sequence[int | str], ...] = (DUEL_CARDS, DUEL_BOARDS)
    for of_game in games:
        chosen += [size for size in of_game if str(size) in wanted] or of_game
    if unknown := [part for part in wanted if part not in map(str, chosen)]:
        known = ", ".join(map(str, (*DUEL_CARDS, *DUEL_BOARDS)))
        raise ConfigurationError(f"--sizes {unknown[0]}: duels have the sizes {known}")
    return tuple(chosen)


def _line(match: MatchResult) -> str:
    counts = f"{match.count('win')} won, {match.count('draw')} drawn, {match.count('loss')} lost"
    return (
        f"{match.game}: {match.first} against {match.second}: {counts}; {match.stopped} "
        f"({match.seconds:.1f} s)"
    )


def _write(result: LeagueResult, settings: dict[str, Any], replays: int, out: Path) -> Path:
    """The files of a league; returns the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result.to_json(settings), ensure_ascii=False, indent=1)
    (out / "league.json").write_text(text + "\n", encoding="utf-8")
    with styled():
        save_figure(league_figure(result), out / "league.png")
    page = out / "league.html"
    page.write_text(league_page(result, settings, replays), encoding="utf-8")
    return page
