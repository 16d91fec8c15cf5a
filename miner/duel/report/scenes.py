"""A game as pictures to step through: what lies on the table before and after every move.

A scene is plain data that the page draws: a board, rows of cards, dice or chips, and facts. A
person looking on sees both hands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from miner.duel.games import Table, duel_game
from miner.duel.games.liars_dice import DICE, FACES
from miner.duel.games.othello import SIZE
from miner.duel.outcome import GameRecord, Ply
from miner.environments.games.state_texts import LEDUC_BETS, leduc_card, leduc_fields

Scene = dict[str, Any]

_GIN_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
_SUITS = {"s": "♠", "c": "♣", "d": "♦", "h": "♥"}
_STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Clobber's directions as rows and columns: up, right, down, left."""


def frames(record: GameRecord) -> list[Scene]:
    """One frame before the first move, one after each, and one of the reply that forfeited."""
    table = Table(duel_game(record.game), record.seed)
    draw = _SCENES[record.game]
    shown = [_frame(table, draw, None, "")]
    for ply in record.plies:
        label = table.label(ply.player, ply.action)
        table.apply(ply.action)
        shown.append(_frame(table, draw, ply, label))
    if (forfeit := record.forfeit) is not None:
        move = f"no legal move ({forfeit.cause.value})"
        shown.append(
            _frame(table, draw, None, "")
            | {"mover": forfeit.player, "move": move, "said": forfeit.reply}
        )
    return shown


def _frame(
    table: Table, draw: Callable[[Table, Ply | None], Scene], ply: Ply | None, label: str
) -> Scene:
    frame = draw(table, ply)
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


def _othello(table: Table, ply: Ply | None) -> Scene:
    lines = table.state.observation_string(0).splitlines()
    cells = [line.split()[1 : 1 + SIZE] for line in lines[2 : 2 + SIZE]]
    marks = [divmod(ply.action, SIZE)] if ply and ply.action < SIZE * SIZE else []
    counts = [sum(row.count(disc) for row in cells) for disc in "xo"]
    return {
        "board": _board("othello", cells, marks, [str(i + 1) for i in range(SIZE)]),
        "facts": [["black", counts[0]], ["white", counts[1]]],
    }


def _clobber(table: Table, ply: Ply | None) -> Scene:
    lines = [line for line in table.state.observation_string(0).splitlines() if line.strip()][:-1]
    cells = [list(line[1:]) for line in lines]
    marks = []
    if ply is not None:
        row, column = divmod(ply.action // 4, len(cells[0]))
        down, right = _STEPS[ply.action % 4]
        marks = [(row, column), (row + down, column + right)]
    movable = len(table.state.legal_actions()) if not table.state.is_terminal() else 0
    return {
        "board": _board("clobber", cells, marks, [line[0] for line in lines]),
        "facts": [["moves to choose from", movable]],
    }


def _board(
    kind: str, cells: list[list[str]], marks: Sequence[tuple[int, int]], ranks: list[str]
) -> Scene:
    return {
        "kind": kind,
        "cells": cells,
        "marks": [list(mark) for mark in marks],
        "ranks": ranks,
        "files": "abcdefghij"[: len(cells[0])],
    }


def _goofspiel(table: Table, ply: Ply | None) -> Scene:
    history = table.state.history()
    size = table.loaded.num_distinct_actions()
    over = table.state.is_terminal()
    prizes, bids = history[0::3], (history[1::3], history[2::3])
    done = min(len(bids[0]), len(bids[1]))
    now = prizes[-1] if not over else None
    rows: list[Scene] = [
        {"title": "prize", "items": [] if now is None else [_card(now + 1, mark=True)]}
    ]
    for seat in (0, 1):
        spent = set(bids[seat])
        items = [
            _card(
                card + 1, dim=card in spent, mark=len(bids[seat]) > done and card == bids[seat][-1]
            )
            for card in range(size)
        ]
        rows.append({"title": seat, "items": items})
    rounds = [
        [prize + 1, first + 1, second + 1]
        for prize, first, second in zip(prizes, bids[0], bids[1], strict=False)
    ]
    if over:  # the last round plays itself
        cards = set(range(size))
        rounds.append([(cards - set(played)).pop() + 1 for played in (prizes, *bids)])
    points = [sum(p for p, *b in rounds if b[seat] > b[1 - seat]) for seat in (0, 1)]
    return {"rows": rows, "facts": [["points", f"{points[0]} : {points[1]}"]], "rounds": rounds}


def _liars_dice(table: Table, ply: Ply | None) -> Scene:
    history = table.state.history()
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


def _leduc_poker(table: Table, ply: Ply | None) -> Scene:
    fields = [leduc_fields(table.state.information_state_string(seat)) for seat in (0, 1)]
    rows: list[Scene] = [
        {"title": seat, "items": [_suited(leduc_card(fields[seat]["Private"]))]} for seat in (0, 1)
    ]
    public = fields[0].get("Public")
    open_cards = [_suited(leduc_card(public))] if public else [{"back": True}]
    rows.insert(1, {"title": "open", "items": open_cards})
    chips = fields[0]["Money"].split()
    bets = [
        ", ".join(LEDUC_BETS[int(bet)] for bet in fields[0][f"Round{number}"].split()) or "-"
        for number in "12"
    ]
    facts = [["pot", fields[0]["Pot"]], ["chips", " : ".join(chips)]]
    facts += [["round 1", bets[0]], ["round 2", bets[1]]]
    return {"rows": rows, "facts": facts}


def _gin_rummy(table: Table, ply: Ply | None) -> Scene:
    views = [table.state.observation_string(seat) for seat in (0, 1)]
    rows: list[Scene] = []
    for seat, view in enumerate(views):
        block = _GIN_ROW.findall(view)[4 * seat : 4 * seat + 4]
        cards = [card for line in block for card in _gin_cards(line)]
        rows.append({"title": seat, "items": cards})
    upcard = _field(views[0], r"Upcard: (\S\S)")
    pile = _field(views[0], r"Discard pile: (\S*)")
    open_cards = [] if upcard == "XX" else [_gin_card(upcard, mark=True)]
    rows.insert(1, {"title": "open", "items": open_cards + _gin_cards(pile)[::-1][:6]})
    melds = re.findall(r"Layed melds: (.*)", views[0] + views[1])
    if melds:
        laid = list(dict.fromkeys(meld for line in melds for meld in line.split()))
        rows += [{"title": "meld", "items": _gin_cards(meld)} for meld in laid]
    deadwood = [_field(view, rf"Player{seat}: Deadwood=(\d+)") for seat, view in enumerate(views)]
    facts = [
        ["phase", _field(views[0], r"Phase: (\w+)")],
        ["stock", _field(views[0], r"Stock size: (\d+)")],
        ["deadwood", " : ".join(points or "-" for points in deadwood)],
        ["knock with", _field(views[0], r"Knock card: (\d+)")],
    ]
    return {"rows": rows, "facts": facts}


def _gin_cards(text: str) -> list[Scene]:
    return [_gin_card(card) for card in re.findall(r"[A2-9TJQK][scdh]", text)]


def _gin_card(card: str, *, mark: bool = False) -> Scene:
    return _suited(card[0].replace("T", "10") + _SUITS[card[1]], mark=mark)


def _suited(text: str, *, mark: bool = False) -> Scene:
    return {"card": text, "red": text[-1] in "♥♦", "mark": mark}


def _card(value: int, *, dim: bool = False, mark: bool = False) -> Scene:
    return {"card": str(value), "dim": dim, "mark": mark}


def _field(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""


_SCENES: dict[str, Callable[[Table, Ply | None], Scene]] = {
    "othello": _othello,
    "clobber": _clobber,
    "goofspiel": _goofspiel,
    "liars_dice": _liars_dice,
    "leduc_poker": _leduc_poker,
    "gin_rummy": _gin_rummy,
}
