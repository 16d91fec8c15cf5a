"""Leduc poker: six cards, two rounds of betting, one public card between them."""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters
from miner.environments.games.state_texts import LEDUC_BETS, leduc_card, leduc_fields


def _parameters(configuration: int) -> Parameters:
    return {"players": 2}


def _state_text(state: pyspiel.State, player: int) -> str:
    """From e.g. `[Private: 3][Round 1][Pot: 2][Money: 99 99][Round1: 1 2][Round2: ]`."""
    fields = leduc_fields(state.information_state_string(player))
    chips = fields["Money"].split()
    lines = [f"Your card: {leduc_card(fields['Private'])}"]
    if "Public" in fields:
        lines.append(f"Public card: {leduc_card(fields['Public'])}")
        if int(fields["Public"]) // 2 == int(fields["Private"]) // 2:
            lines.append("Hand: PAIR")
    lines += [
        f"Round: {fields['Round']}/2",
        f"Pot: {fields['Pot']} chips",
        f"Your chips: {chips[player]}",
        f"Opponent chips: {chips[1 - player]}",
    ]
    for number in "12":
        bets = [LEDUC_BETS[int(bet)] for bet in fields[f"Round{number}"].split()]
        if bets:
            lines.append(f"Round {number} actions: {', '.join(bets)}")
    return "\n".join(lines)


LEDUC_POKER = DuelGame("leduc_poker", _parameters, _state_text)
