"""A league as a picture: every player's score in every game, with its interval."""

from __future__ import annotations

from matplotlib.figure import Figure

from miner.duel.league import LeagueResult
from miner.reporting.figures import point_ranges
from miner.reporting.style import FAINT, MARKERS, MUTED, SERIES, new_figure, styled


def game_title(game: str) -> str:
    """A game's name for people."""
    return game.replace("_", " ").replace("liars", "liar's").capitalize()


def league_figure(result: LeagueResult) -> Figure:
    """Scores by game, players side by side in the order of the standings."""
    order = [name for name, _ in result.standings()]
    with styled():
        figure = new_figure(max(8.0, 1.6 * len(result.games) + 1.6), 4.2)
        axes = figure.add_subplot()
        axes.axhline(0.5, color=FAINT, linewidth=1.4, zorder=0)
        width = 0.7 / max(1, len(order))
        for number, player in enumerate(order):
            offset = (number - (len(order) - 1) / 2) * width
            rows = [result.row(player, game) for game in result.games]
            shown = [(x + offset, row.score) for x, row in enumerate(rows) if row.score]
            point_ranges(
                axes,
                [x for x, _ in shown],
                [score for _, score in shown],
                color=SERIES[number % len(SERIES)],
                marker=MARKERS[number % len(MARKERS)],
                label=f"{player}  {dict(result.standings())[player]:.2f}",
            )
        axes.set_xlim(-0.6, len(result.games) - 0.4)
        axes.set_ylim(-0.02, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_ylabel("score (1: won every game)")
        axes.set_xticks(range(len(result.games)), [game_title(game) for game in result.games])
        axes.tick_params(axis="x", length=0)
        axes.set_title("Scores against all others\n")
        played = sum(len(match.games) for match in result.matches)
        note = f"{played:,} games, 95% intervals; beside the names: mean rank, 1 is best"
        axes.text(0, 1.03, note, transform=axes.transAxes, color=MUTED)
        figure.legend(loc="outside lower center", ncols=min(4, len(order)))
        return figure
