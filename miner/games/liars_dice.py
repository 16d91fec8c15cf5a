"""Liar's dice: five dice each, sixes wild; a player is shown their own dice and the last bid.

The servers' text after a bid equals the recorded one; before the first bid it was not recorded.
"""

from typing import Any

import pyspiel

from miner.games.base import Game, Parameters, Scene

DICE = 5
FACES = 6


def _parameters(configuration: int) -> Parameters:
    return {"players": 2, "numdice": DICE}


def _server_text(state: pyspiel.State, player: int) -> str:
    lines = [
        "Number of dice per player: {dice}",
        "Total dice in game: {total}",
        "Number of players: 2",
        f"Current player to act: Player {player}",
    ]
    claim = "claiming at least {count} dice showing {face} across all players"
    can = "You can either: (1) Make a higher bid, or (2) Call 'Liar'"
    return _text(state, player, lines, claim, can)


def _duel_text(state: pyspiel.State, player: int) -> str:
    lines = [
        "Dice per player: {dice}",
        "Total dice in game: {total}",
        "Players: 2",
        f"Current player: Player {state.current_player()}",
    ]
    claim = "at least {count} dice showing {face} across all players"
    can = "You can: (1) Make a higher bid, or (2) Call 'Liar'"
    return _text(state, player, lines, claim, can)


def _text(state: pyspiel.State, player: int, lines: list[str], claim: str, can: str) -> str:
    """From the player's own dice and all bids, such as `12334 6-6 7-1`."""
    shown, *bids = state.information_state_string(player).split()
    dice = ", ".join(shown)
    head = [f"Your dice: [{dice}] (showing: {dice})"]
    head += [line.format(dice=len(shown), total=2 * len(shown)) for line in lines]
    bids = [bid for bid in bids if "-" in bid]
    if not bids:
        return "\n".join([*head, "No bid yet - you must make the first bid"])
    count, face = bids[-1].split("-")
    bid = f'\nCurrent bid: "{bids[-1]}" ({claim.format(count=count, face=face)})'
    return "\n".join([*head, bid, can])


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    history = state.history()
    dice = [face + 1 for face in history[: 2 * DICE]]
    bids = history[2 * DICE :]
    rows: list[Scene] = []
    standing = [bid for bid in bids if bid < 2 * DICE * FACES]
    face = standing[-1] % FACES + 1 if standing else None
    for seat in (0, 1):
        hand = dice[seat * DICE : (seat + 1) * DICE]
        items = [{"die": die, "mark": face is not None and die in (face, FACES)} for die in hand]
        rows.append({"title": seat, "items": items})
    facts: list[list[Any]] = []
    if face is not None:
        held = sum(die in (face, FACES) for die in dice)
        facts = [
            ["bid", f"{standing[-1] // FACES + 1} dice with {face}"],
            ["there are", f"{held} (sixes count)"],
        ]
    return {"rows": rows, "facts": facts}


LIARS_DICE = Game(
    name="liars_dice",
    block=1,
    rules=(
        "Each player rolls dice that only they can see. Players take turns: raise the bid (a "
        "number of dice and a face, counted over all dice), or call Liar. Sixes count as every "
        "face. After Liar the dice are shown: if the bid holds, the caller loses, otherwise the "
        "bidder loses."
    ),
    draw=_draw,
    server_parameters=_parameters,
    duel_parameters=_parameters,
    server_text=_server_text,
    duel_text=_duel_text,
    search=(3000, 200),
)
