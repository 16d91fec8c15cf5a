"""The state block of each game: what stands under the prompt's `Current State:` line.

Goofspiel, the first betting round of Leduc poker, Liar's dice after a bid, Clobber and the opening
of gin rummy are equal to what was recorded from the real server. Not recorded: Leduc's second
round, Liar's dice before the first bid, Othello, and the later phases of gin rummy.
"""

from __future__ import annotations

import re

import pyspiel

from miner.environments.games import goofspiel

_LEDUC_FIELD = re.compile(r"\[(\w+):? ([^\]]*)\]")
_LEDUC_RANKS = "JQK"
_LEDUC_SUITS = "♠♥"
LEDUC_BETS = ("Fold", "Call", "Raise")


def state_text(game_name: str, state: pyspiel.State, player: int) -> str:
    """The state block that `player` is shown on their turn."""
    if game_name == "goofspiel":
        return goofspiel.state_text(state.observation_string(player))
    if game_name == "leduc_poker":
        return _leduc_poker(state.information_state_string(player), player)
    if game_name == "liars_dice":
        return _liars_dice(state.information_state_string(player), player)
    return state.observation_string(player)


def _leduc_poker(information: str, player: int) -> str:
    """From e.g. `[Private: 3][Round 1][Pot: 2][Money: 99 99][Round1: 1 2][Round2: ]`."""
    fields = leduc_fields(information)
    chips = fields["Money"].split()
    lines = [f"Your card: {leduc_card(fields['Private'])}"]
    if "Public" in fields:
        lines.append(f"Public card: {leduc_card(fields['Public'])}")
        if int(fields["Public"]) // 2 == int(fields["Private"]) // 2:
            lines.append("Hand: Pair")
    lines += [
        f"Current round: {fields['Round']}/2",
        f"Pot size: {fields['Pot']} chips",
        f"Your chips: {chips[player]}",
        f"Opponent chips: {chips[1 - player]}",
    ]
    for betting_round in "12":
        bets = [LEDUC_BETS[int(bet)] for bet in fields[f"Round{betting_round}"].split()]
        if bets:
            lines.append(f"Round {betting_round} betting: {', '.join(bets)}")
    return "\n".join([*lines, "Your turn to act"])


def leduc_fields(information: str) -> dict[str, str]:
    """The parts of an information state by their names, such as Private."""
    return dict(_LEDUC_FIELD.findall(information))


def leduc_card(number: str) -> str:
    """A card as it is shown, such as `J♠` for 0."""
    rank, suit = divmod(int(number), 2)
    return _LEDUC_RANKS[rank] + _LEDUC_SUITS[suit]


def _liars_dice(information: str, player: int) -> str:
    """From the player's own dice and all bids, e.g. `12334 6-6 7-1`."""
    shown, *bids = information.split()
    dice = ", ".join(shown)
    lines = [
        f"Your dice: [{dice}] (showing: {dice})",
        f"Number of dice per player: {len(shown)}",
        f"Total dice in game: {2 * len(shown)}",
        "Number of players: 2",
        f"Current player to act: Player {player}",
    ]
    if not bids:
        return "\n".join([*lines, "No bid yet - you must make the first bid"])
    count, face = bids[-1].split("-")
    claim = f"claiming at least {count} dice showing {face} across all players"
    return "\n".join(
        [
            *lines,
            f'\nCurrent bid: "{bids[-1]}" ({claim})',
            "You can either: (1) Make a higher bid, or (2) Call 'Liar'",
        ]
    )
