"""How much the rules of a duel cost on top of the engine: games/s of random play, in one run.

    python -m benchmarks.duels [--rounds 3] [--games 200] [--model FOLDER]

For each game the bare engine (legal actions, a random one, chance by numpy) and whole matches of
two random players through the harness take turns, so that both see the same machine; printed are
the best rates of each and their ratio. `prompts` renders both messages and the tools of every
turn, which players that look at the game itself never do.

With --model, that model plays 64 games of Goofspiel at once against random bids, and its sampler
answers the same prompts, 64 at once, without any game around it; both take turns. Printed are
tokens/s of replies, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch

from miner.duel.family import folder_family
from miner.duel.games import GAMES
from miner.duel.games.table import configuration_of
from miner.duel.memory import Notes, WordCounter
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Reply
from miner.duel.players.model import ModelPlayer
from miner.duel.players.rules import RulePlayer, random_move
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.inference.sampler import Sample, Sampler, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.model_folder import load_model_folder

RULES = Rules(1, own_wording())
PATIENT = Rules(1, own_wording(), turn_limit_s=600)


def engine(game: str, seeds: list[int]) -> None:
    """Random play without any of our code around it."""
    rng = Random(1)
    for seed in seeds:
        state = GAMES[game].load(configuration_of(GAMES[game], seed)).new_initial_state()
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


AT_ONCE = 64


class _Recorder:
    """A sampler that keeps what it was asked and how many tokens it answered."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self._sampler = sampler
        self.asked: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.tokens = 0

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        self.asked.append((tuple(prompt_ids), params))
        sample = await self._sampler.sample(prompt_ids, params, session=session)
        self.tokens += len(sample.token_ids)
        return sample

    async def end_session(self, session: int) -> None:
        await self._sampler.end_session(session)


async def duels_of_a_model(player: ModelPlayer) -> None:
    """64 games at once."""

    async def one(seed: int) -> None:
        players = [player, RulePlayer("b", random_move(seed))]
        notes = [Notes(player.counter), Notes(WordCounter())]
        await play_game(GAMES["goofspiel"], seed, players, notes, PATIENT)

    await asyncio.gather(*(one(seed) for seed in range(1, AT_ONCE + 1)))


async def sampler_alone(
    sampler: Sampler, asked: Sequence[tuple[Sequence[int], SamplingParams]]
) -> None:
    """The same prompts, 64 at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(prompt: Sequence[int], params: SamplingParams) -> None:
        async with places:
            await sampler.sample(prompt, params)

    await asyncio.gather(*(one(*each) for each in asked))


def model(folder: Path, rounds: int) -> None:
    """Print the rates of a model's duels and of its sampler."""
    loaded = load_model_folder(folder, torch.float32)
    chat = loaded.chat
    family = folder_family(folder, chat.tokenizer)
    with TransformersSampler(loaded.model, chat.tokenizer, max_sessions=AT_ONCE) as sampler:
        best = [0.0, 0.0]
        for _ in range(rounds):
            recorder = _Recorder(sampler)
            player = ModelPlayer("a", recorder, chat, family=family, context=4096)
            for i in (0, 1):
                begun = time.perf_counter()
                if i == 0:
                    asyncio.run(duels_of_a_model(player))
                else:
                    asyncio.run(sampler_alone(sampler, recorder.asked))
                best[i] = max(best[i], recorder.tokens / (time.perf_counter() - begun))
    played, alone = best
    print(
        f"{AT_ONCE} duels at once {played:.0f} tokens/s, sampler {alone:.0f}: {played / alone:.2f}"
    )


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
    parser.add_argument("--model", type=Path, help="play this model's duels instead")
    options = parser.parse_args()
    if options.model:
        model(options.model, options.rounds)
        return
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
