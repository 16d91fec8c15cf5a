"""A game as pictures to step through, one before and after every move, with both hands."""

from __future__ import annotations

import re

from miner.duel.outcome import GameRecord, Ply
from miner.duel.table import Table
from miner.games import Scene, game_named


def frames(record: GameRecord) -> list[Scene]:
    """One frame before the first move, one after each, and one of the reply that forfeited."""
    table = Table(game_named(record.game), record.seed)
    shown = [_frame(table, None, "")]
    for ply in record.plies:
        label = table.label(ply.player, ply.action)
        table.apply(ply.action)
        shown.append(_frame(table, ply, label))
    if (forfeit := record.forfeit) is not None:
        move = f"no legal move ({forfeit.cause.value})"
        shown.append(
            _frame(table, None, "") | {"mover": forfeit.player, "move": move, "said": forfeit.reply}
        )
    return shown


def _frame(table: Table, ply: Ply | None, label: str) -> Scene:
    frame = table.game.draw(table.state, ply.action if ply else None)
    if ply is not None:
        frame |= {"mover": ply.player, "move": _short(label)}
        if ply.content:
            frame["said"] = ply.content
        if ply.notes is not None:
            frame["notes"] = ply.notes
    return frame


def _short(label: str) -> str:
    """An engine's label without the player it names."""
    return re.sub(r"^(\[P\d\]|Player: \d Action: )", "", label)
