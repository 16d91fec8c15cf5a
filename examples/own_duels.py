"""Teachers and an opponent of one's own, for duels.

python -m miner train environment.channel=duel demonstrations.share=0.4 \\
  demonstrations.teacher=examples/own_duels.py:teach \\
  environment.opponents=random,examples/own_duels.py:play ...
"""

from __future__ import annotations

from miner.duel.players.rival import rule_of_thumb
from miner.duel.teachers import Seen


def teach(game: str, seen: Seen) -> dict[int, float] | None:
    """Leduc: raise where one can, and never fold, since a game counts by its sign alone.

    Args:
        seen: the state as it is shown, the seat, and the legal actions' labels by id.

    Returns: a chance to win for each legal action; None leaves the game to the built-in teacher.
    """
    if game != "leduc_poker":
        return None
    chances = {"Fold": 0.1, "Call": 0.5, "Raise": 0.6}
    return {action: chances[label] for action, label in seen.actions.items()}


def imitate(game: str, seen: Seen) -> dict[int, float]:
    """The rules that public winners of the tournament imitate."""
    chosen = rule_of_thumb(game, seen)
    return {action: 0.6 if action == chosen else 0.5 for action in seen.actions}


def play(game: str, seen: Seen) -> int:
    """The move that is taught in Leduc, else the last one listed."""
    values = teach(game, seen)
    return max(values, key=lambda action: values[action]) if values else max(seen.actions)
