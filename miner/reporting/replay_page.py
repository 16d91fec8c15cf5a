"""A replay as a self-contained page: no other files, every text escaped; games are drawn."""

import json
from typing import Any

from miner.config.contract import game_title
from miner.reporting.records import Replay
from miner.reporting.templates import render


def replay_html(replay: Replay) -> str:
    """The page of one episode: every move with its exact replies, and a game's positions."""
    end = headline(replay)
    seats = [replay.opponent, replay.opponent]
    seats[replay.seat or 0] = replay.policy
    game = replay.environment.rpartition(":")[2]
    drawn = {"game": game, "seats": seats, "outcome": end, "frames": replay.scenes}
    return render(
        "replay.html.j2",
        replay=replay,
        headline=end,
        description=description(replay),
        replays=in_script([drawn]),
        replay_names=[end],
    )


def in_script(value: Any) -> str:
    """JSON that is safe in a page's script with any text."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def headline(replay: Replay) -> str:
    """The game's end, in a few words."""
    if replay.failure or replay.score is None:
        failure = (replay.failure or "not finished").replace("_", " ")
        return f"Broken off: {failure}"
    if replay.seat is None:
        return f"Score {replay.score:.3g}"
    word = "Won" if replay.score > 0.5 else "Lost" if replay.score < 0.5 else "Drawn"
    return f"{word} (score {replay.score:.3g})"


def description(replay: Replay) -> str:
    """The game and its players, in one line."""
    cards = "" if replay.deck_size is None else f", {replay.deck_size} cards"
    who = replay.policy
    if replay.seat is None:
        task = "" if replay.task_id == replay.seed else f"task {replay.task_id}, "
        return f"{who} in {replay.environment} ({task}seed {replay.seed})"
    game = game_title(replay.environment)
    return (
        f"{who} in {game} as player {replay.seat}"
        f" against the {replay.opponent} opponent{cards}"
        f" (task {replay.task_id}, seed {replay.seed})"
    )
