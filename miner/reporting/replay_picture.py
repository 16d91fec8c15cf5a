"""One game of Goofspiel as a compact picture: bids over prizes round by round, points below."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from miner.reporting.records import Replay, Round
from miner.reporting.style import AMBER, BLUE, INK, MUTED, ORANGE, new_figure, styled

_LANES = {"agent": 2.0, "prize": 1.0, "opponent": 0.0}
_CARD = (0.52, 0.66)
_GOLD = "#FBE7BF"


def replay_picture(replay: Replay, *, titled: bool = True) -> Figure:
    """The game at a glance, with or without who played and how it ended above it.

    Raises: ValueError for a replay without rounds (another game).
    """
    if not replay.rounds:
        raise ValueError(f"{replay.environment} has no rounds of bids to draw: see its moves")
    with styled():
        figure = new_figure(max(6.4, 1.9 + 0.56 * len(replay.rounds)), 4.6)
        board, points = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.7))
        _draw_board(board, replay.rounds)
        _draw_points(points, replay.rounds)
        if titled:
            who = description(replay).replace(" (task", "\n(task")  # one line is wider than 8 cards
            board.set_title(f"{headline(replay)}\n\n", fontsize=12.5)
            board.text(0, 1.03, who, transform=board.transAxes, color=MUTED, fontsize=9.5)
        return figure


def headline(replay: Replay) -> str:
    """How the game ended, in a few words."""
    points = ""
    if replay.rounds:
        last = replay.rounds[-1]
        points = f" {last.agent_points} : {last.opponent_points}"
    if replay.failure or replay.score is None:
        failure = (replay.failure or "not finished").replace("_", " ")
        return f"Broken off{points and ' at' + points}: {failure}"
    if replay.seat is None:
        return f"Score {replay.score:.3g}"
    word = "Won" if replay.score > 0.5 else "Lost" if replay.score < 0.5 else "Drawn"
    return f"{word}{points}" if points else f"{word} (score {replay.score:.3g})"


def _game(replay: Replay) -> str:
    """The game, where pictures do not show which it is."""
    return "" if replay.rounds else f" in {replay.environment.rpartition(':')[2].replace('_', ' ')}"


def description(replay: Replay) -> str:
    """Who played what, in one line."""
    cards = "" if replay.deck_size is None else f", {replay.deck_size} cards"
    who = replay.policy
    if replay.seat is None:
        task = "" if replay.task_id == replay.seed else f"task {replay.task_id}, "
        return f"{who} in {replay.environment} ({task}seed {replay.seed})"
    return (
        f"{who}{_game(replay)} as player {replay.seat}"
        f" against the {replay.opponent} opponent{cards}"
        f" (task {replay.task_id}, seed {replay.seed})"
    )


def _draw_board(axes: Axes, rounds: Sequence[Round]) -> None:
    for x, played in enumerate(rounds, start=1):
        won, lost = played.winner == "agent", played.winner == "opponent"
        _card(axes, x, _LANES["agent"], played.agent_bid, BLUE, filled=won)
        _card(axes, x, _LANES["opponent"], played.opponent_bid, ORANGE, filled=lost)
        _coin(axes, x, played.prize, taken=won or lost)
        if won or lost:
            target = _LANES["agent" if won else "opponent"]
            direction = 1 if won else -1
            axes.annotate(
                "",
                (x, target - direction * 0.36),
                (x, _LANES["prize"] + direction * 0.33),
                arrowprops={"arrowstyle": "-|>", "color": BLUE if won else ORANGE, "lw": 1.4},
            )
    axes.set_xlim(0.35, len(rounds) + 0.65)
    axes.set_ylim(-0.5, 2.5)
    axes.set_yticks(list(_LANES.values()), ["agent's bid", "prize", "opponent's bid"])
    axes.tick_params(length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)


def _card(axes: Axes, x: float, y: float, value: int, color: str, *, filled: bool) -> None:
    width, height = _CARD
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.09",
            facecolor=color if filled else "white",
            edgecolor=color,
            linewidth=1.4,
        )
    )
    axes.text(
        x,
        y,
        str(value),
        ha="center",
        va="center_baseline",
        fontsize=12,
        fontweight="bold" if filled else "normal",
        color="white" if filled else color,
    )


def _coin(axes: Axes, x: float, value: int, *, taken: bool) -> None:
    axes.plot(
        x,
        _LANES["prize"],
        marker="o",
        markersize=21,
        markerfacecolor=_GOLD if taken else "white",
        markeredgecolor=AMBER if taken else MUTED,
        markeredgewidth=1.3,
    )
    axes.text(
        x,
        _LANES["prize"],
        str(value),
        ha="center",
        va="center_baseline",
        fontsize=11,
        fontweight="bold" if taken else "normal",
        color=INK if taken else MUTED,
    )


def _draw_points(axes: Axes, rounds: Sequence[Round]) -> None:
    x = range(1, len(rounds) + 1)
    agent = [played.agent_points for played in rounds]
    opponent = [played.opponent_points for played in rounds]
    lines = (("agent", agent, BLUE, "-"), ("opponent", opponent, ORANGE, "--"))
    close = abs(agent[-1] - opponent[-1]) < 0.15 * max(*agent, *opponent, 1)
    for label, values, color, dash in lines:
        axes.plot(
            x, values, color=color, linestyle=dash, linewidth=2, label=label, marker="o", ms=3
        )
        above = values is (agent if agent[-1] >= opponent[-1] else opponent)
        axes.annotate(
            str(values[-1]),
            (len(rounds), values[-1]),
            xytext=(7, (6 if above else -6) if close else 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontweight="bold",
            annotation_clip=False,
        )
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(1, len(rounds) + 1))
    axes.set_xlabel("round (the last one plays itself)" if rounds[-1].forced else "round")
    axes.set_ylabel("points")
    axes.grid(axis="y")
    axes.legend(loc="upper left")
