"""Liar's dice: five dice each, sixes wild; a player is shown their own dice and the last bid."""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters

DICE = 5
FACES = 6


def _parameters(configuration: int) -> Parameters:
    return {"players": 2, "numdice": DICE}


def _state_text(state: pyspiel.State, player: int) -> str:
    """From OpenSpiel's own dice and all bids, such as `12334 6-6 7-1`."""
    shown, *bids = state.information_state_string(player).split()
    dice = ", ".join(shown)
    lines = [
        f"Your dice: [{dice}] (showing: {dice})",
        f"Dice per player: {len(shown)}",
        f"Total dice in game: {2 * len(shown)}",
        "Players: 2",
        f"Current player: Player {state.current_player()}",
    ]
    bids = [bid for bid in bids if "-" in bid]
    if not bids:
        return "\n".join([*lines, "No bid yet - you must make the first bid"])
    count, face = bids[-1].split("-")
    lines.append(
        f'\nCurrent bid: "{bids[-1]}" (at least {count} dice showing {face} across all players)'
    )
    lines.append("You can: (1) Make a higher bid, or (2) Call 'Liar'")
    return "\n".join(lines)


LIARS_DICE = DuelGame("liars_dice", _parameters, _state_text)
