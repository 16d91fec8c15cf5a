"""A league as a picture: every player's score in every game, with its interval."""

from matplotlib.figure import Figure

from miner.duel.league import LeagueResult
from miner.reporting.figures import point_ranges
from miner.reporting.style import FAINT, MARKERS, MUTED, SERIES, new_figure, styled


def game_title(game: str) -> str:
    """A game's name for people."""
    return game.replace("_", " ").replace("liars", "liar's").capitalize()


def league_figure(result: LeagueResult) -> Figure:
    """Scores by game, players below each other in the order of the standings.

    It is as wide as a telephone's screen can show with readable letters.
    """
    order = [name for name, _ in result.standings()]
    with styled():
        height = len(result.games) * (0.5 + 0.16 * len(order))
        figure = new_figure(5.2, 1.6 + height + 0.22 * len(order))
        axes = figure.add_subplot()
        axes.axvline(0.5, color=FAINT, linewidth=1.4, zorder=0)
        width = 0.7 / max(1, len(order))
        for number, player in enumerate(order):
            offset = (number - (len(order) - 1) / 2) * width
            rows = [result.row(player, game) for game in result.games]
            shown = [(at + offset, row.score) for at, row in enumerate(rows) if row.score]
            point_ranges(
                axes,
                [at for at, _ in shown],
                [score for _, score in shown],
                color=SERIES[number % len(SERIES)],
                marker=MARKERS[number % len(MARKERS)],
                label=f"{player}  {dict(result.standings())[player]:.2f}",
                lying=True,
            )
        axes.set_ylim(len(result.games) - 0.4, -0.6)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_xlabel("score (1: won every game)")
        axes.set_yticks(range(len(result.games)), [game_title(game) for game in result.games])
        axes.tick_params(axis="y", length=0)
        axes.set_title("Scores against all others\n")
        played = sum(len(match.games) for match in result.matches)
        axes.annotate(
            f"{played:,} games, 95% intervals; names: mean rank, 1 is best",
            *((0, 1), (0, 6)),
            xycoords="axes fraction",
            textcoords="offset points",
            color=MUTED,
        )
        figure.legend(loc="outside lower center", ncols=1 if max(map(len, order)) > 14 else 2)
        return figure
