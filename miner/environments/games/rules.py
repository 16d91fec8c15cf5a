"""The rules of each game in our own words, for prompts where no server's own prompt is known."""

from __future__ import annotations

RULES: dict[str, str] = {
    "goofspiel": (
        "Two players hold the same bid cards, 1 to N. The prize cards 1 to N come up one by one "
        "in random order. In each round both players bid one card from their hand at the same "
        "time. The higher bid wins the prize's value in points; equal bids win nothing. Bid "
        "cards are spent. Whoever has more points after the last round wins."
    ),
    "liars_dice": (
        "Each player rolls dice that only they can see. Players take turns: raise the bid (a "
        "number of dice and a face, counted over all dice), or call Liar. Sixes count as every "
        "face. After Liar the dice are shown: if the bid holds, the caller loses, otherwise the "
        "bidder loses."
    ),
    "leduc_poker": (
        "The deck has two jacks, two queens and two kings. Each player pays an ante of one chip "
        "and gets one private card. There are two betting rounds with at most two raises each "
        "(2 chips in the first, 4 in the second); between them one public card is turned up. A "
        "private card that pairs the public one wins, otherwise the higher card."
    ),
    "gin_rummy": (
        "Players hold cards and try to arrange them in melds: three or more of one rank, or runs "
        "of three or more in one suit. Each turn: draw from the stock or the discard pile, then "
        "discard. Cards outside melds are deadwood. A player with little enough deadwood may "
        "knock; the lower deadwood wins the difference, with a bonus for none at all."
    ),
    "othello": (
        "On an 8 by 8 board players place discs so that one or more of the opponent's discs are "
        "enclosed in a straight line; enclosed discs turn over. A player without such a move "
        "passes. The game ends when nobody can move; more discs win."
    ),
    "clobber": (
        "The board starts full of alternating stones. A move takes one of your stones onto a "
        "neighbouring stone of the opponent (up, down, left or right), which is removed. The "
        "player who cannot move loses."
    ),
}
