"""How much each way of giving credit tells per episode: `python -m benchmarks.credit`.

A policy that bids near the prize with probability ~ exp(-beta |bid - prize|) plays groups of
Goofspiel games. The gradient of its score with respect to beta, estimated from one group of 8
episodes, has a mean (the signal) and a standard deviation (the noise) over groups. The number of
episodes needed falls with the square of their ratio; it is printed relative to the terminal
score's own, from the same games.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from miner.environments.games import GameSession
from miner.games.goofspiel import chance_to_win, parse_state
from miner.rewards.advantages import differences_by_round
from miner.rewards.potential import shaped_rewards

GROUP_SIZE = 8
DECAYS = (1.0, 0.95, 0.9, 0.8, 0.6, 0.0)


@dataclass(frozen=True)
class Played:
    """One episode: its score, the potential at each turn, and d log pi / d beta at each turn."""

    score: float
    potentials: list[float]
    slopes: list[float]


def play(task_id: int, seed: int, beta: float, rng: random.Random) -> Played:
    """One graded game of the policy."""
    session = GameSession(task_id, seed)
    potentials, slopes = [], []
    while not session.done:
        turn = session.turn()
        prize = parse_state(turn.state_text).prize
        actions = session.legal_actions()
        nearness = [-abs(action + 1 - prize) for action in actions]
        weights = [math.exp(beta * near) for near in nearness]
        chosen = rng.choices(range(len(actions)), weights)[0]
        mean = sum(w * n for w, n in zip(weights, nearness, strict=True)) / sum(weights)
        slopes.append(nearness[chosen] - mean)
        potentials.append(chance_to_win(turn.state_text, turn.seat))
        session.play(actions[chosen])
    return Played(session.score(), potentials, slopes)


def estimates(group: list[Played]) -> dict[str, float]:
    """The group's gradient estimate under each way of giving credit."""
    terminal = [[0.0] * (len(p.slopes) - 1) + [p.score] for p in group]
    shaped = [shaped_rewards(r, p.potentials) for r, p in zip(terminal, group, strict=True)]
    ways = {"terminal score": (terminal, 1.0)}
    ways |= {f"chance to win, decay {decay:g}": (shaped, decay) for decay in DECAYS}
    found = {}
    for name, (rewards, decay) in ways.items():
        rows = [list(enumerate(values)) for values in rewards]
        advantages, _ = differences_by_round(rows, decay)
        found[name] = sum(
            advantage * slope
            for row, played in zip(advantages, group, strict=True)
            for advantage, slope in zip(row, played.slopes, strict=True)
        ) / len(group)
    return found


def main(groups: int = 600) -> None:
    """Print signal, noise and relative efficiency for small and large decks."""
    console = Console()
    for task_id, cards in ((0, 8), (4, 16)):
        for beta in (0.0, 0.5):
            rng = random.Random(0)
            samples: dict[str, list[float]] = {}
            for number in range(groups):
                seed = 3_000_000 + number
                group = [play(task_id, seed, beta, rng) for _ in range(GROUP_SIZE)]
                for name, value in estimates(group).items():
                    samples.setdefault(name, []).append(value)
            table = Table("credit", "signal", "noise", "episodes needed, ratio")
            table.title = f"{cards} cards, beta {beta:g}, {groups} groups"
            ratios = {n: statistics.mean(v) / statistics.stdev(v) for n, v in samples.items()}
            for name, values in samples.items():
                table.add_row(
                    name,
                    f"{statistics.mean(values):+.3f}",
                    f"{statistics.stdev(values):.3f}",
                    f"{(ratios['terminal score'] / ratios[name]) ** 2:.2f}",
                )
            console.print(table)


if __name__ == "__main__":
    main()
