"""A recorded game as scenes to step through."""

from miner.duel.outcome import GameRecord, Ply
from miner.duel.table import Table
from miner.games import Scene, game_named
from miner.reporting.scenes import scenes


def frames(record: GameRecord) -> list[Scene]:
    """The scenes of a game, and one of the reply that forfeited."""
    table = Table(game_named(record.game), record.seed)
    details = [_details(ply) for ply in record.plies]
    shown = scenes(
        *(table.game, table.loaded, record.history), opening=len(table.opening), details=details
    )
    if (forfeit := record.forfeit) is not None:
        move = f"no legal move ({forfeit.cause.value})"
        forfeited = {"mover": forfeit.player, "move": move, "said": forfeit.reply}
        position = {key: shown[-1][key] for key in shown[-1] if key not in ("notes", "said")}
        shown.append(position | forfeited)
    return shown


def _details(ply: Ply) -> Scene:
    details: Scene = {"said": ply.content} if ply.content else {}
    return details if ply.notes is None else details | {"notes": ply.notes}
