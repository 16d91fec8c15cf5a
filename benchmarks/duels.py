"""How much the rules of a duel cost on top of the engine: games/s of random play, in one run.

    python -m benchmarks.duels [--rounds 3] [--games 200]

For each game the bare engine (legal actions, a random one, chance by numpy) and whole matches of
two random players through the harness take turns, so that both see the same machine; printed are
the best rates of each and their ratio. `prompts` renders both messages and the tools of every
turn, which players that look at the game itself never do.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np

from miner.duel.games import GAMES
from miner.duel.games.table import configuration_of
from miner.duel.memory import Notes, WordCounter
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Reply
from miner.duel.players.rules import RulePlayer, random_move
from miner.duel.turn import Request
from miner.duel.wording import own_wording

RULES = Rules(1, own_wording())


def engine(game: str, seeds: list[int]) -> None:
    """Random play without any of our code around it."""
    rng = Random(1)
    for seed in seeds:
        state = GAMES[game].load(configuration_of(GAMES[game], seed)).game.new_initial_state()
        chance = np.random.RandomState(seed)
        while not state.is_terminal():
            if state.is_chance_node():
                outcomes, odds = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(int(chance.choice(outcomes, p=odds)))
                continue
            legal = state.legal_actions()
            if not legal:
                break
            state.apply_action(rng.choice(legal))


class _Reader(RulePlayer):
    """Reads every request before it plays at random."""

    def answer(self, request: Request) -> Reply:
        assert request.messages
        assert request.tools
        return super().answer(request)


def harness(game: str, seeds: list[int], kind: type[RulePlayer]) -> None:
    """Random play as matches play it."""

    async def play() -> None:
        players = [kind("a", random_move(1)), kind("b", random_move(2))]
        notes = [Notes(WordCounter()), Notes(WordCounter())]
        for seed in seeds:
            await play_game(GAMES[game], seed, players, notes, RULES)

    asyncio.run(play())


def rate(play: Callable[[], None], games: int) -> float:
    """Games/s of one go, in CPU time: other work on the machine does not count."""
    begun = time.process_time()
    play()
    return games / (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--games", type=int, default=200)
    options = parser.parse_args()
    rounds, most = options.rounds, options.games
    print(
        f"{'game':12} {'engine/s':>9} {'harness/s':>9} {'ratio':>6} {'prompts/s':>9} {'ratio':>6}"
    )
    for game in GAMES:
        rng = Random(2)
        count = max(1, most // 10) if game == "gin_rummy" else most
        seeds = [rng.randint(1, 10**6) for _ in range(count)]
        plays = (
            partial(engine, game, seeds),
            partial(harness, game, seeds, RulePlayer),
            partial(harness, game, seeds, _Reader),
        )
        best = [0.0, 0.0, 0.0]
        for _ in range(rounds):
            for i, play in enumerate(plays):
                best[i] = max(best[i], rate(play, count))
        bare, plain, read = best
        print(
            f"{game:12} {bare:9.0f} {plain:9.0f} {plain / bare:6.2f} {read:9.0f} {read / bare:6.2f}"
        )


if __name__ == "__main__":
    main()
