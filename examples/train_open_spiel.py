"""A model learns tic-tac-toe on a real OpenEnv server: `python examples/train_open_spiel.py`.

`make setup-openenv` comes first. The server is examples/openenv/open_spiel.py, whose opponent plays
at random. The model is a tiny one that is made here and knows what a game looks like, no more: it
names any cell, and often a taken one. Everything else is `python -m miner train`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyspiel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.train_openenv import arguments, learn, make_base
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.form import FormRecipe, Piece
from miner.tiny_model.tokenizer import EOS, ROLES

APP = Path(__file__).parent / "openenv" / "open_spiel.py"
GAME = "tic_tac_toe"
BASE_STEPS = 120
SETTINGS = (
    "environment.channel=openenv",
    f"environment.openenv.app={APP}",
    "environment.openenv.show=board",
    "environment.openenv.return_range=[-1, 1]",
    "environment.openenv.max_turns=6",
    "environment.openenv.unfinished=zero",
    "threads=1",
    "rollout.groups_per_step=8",
    "rollout.group_size=16",
    "rollout.max_reply_tokens=3",
    "optimizer.max_steps=40",
    "optimizer.learning_rate=6e-4",
    "optimizer.decay_share=0.5",
    "evaluation.every_steps=20",
    "evaluation.episodes=200",
)


def dialogue(rng: random.Random) -> list[Piece]:
    """A game of two who play at random, as the first of them sees it."""
    _, user, assistant = ROLES
    pieces: list[Piece] = []
    position = pyspiel.load_game(GAME).new_initial_state()
    while not position.is_terminal():
        legal = position.legal_actions()
        move = rng.choice(legal)
        if position.current_player() == 0:
            seen = f"{position.observation_string(0)}\nLegal actions: {', '.join(map(str, legal))}"
            pieces.append((f"{user}{seen}{EOS}{assistant}", False))
            pieces.append((f"{move}{EOS}", True))
        position.apply_action(move)
    return pieces


def at_random(state: pyspiel.State) -> float:
    """The score to expect from here on where both play at random."""
    if state.is_terminal():
        return (state.returns()[0] + 1) / 2
    scores = [at_random(state.child(action)) for action in state.legal_actions()]
    return sum(scores) / len(scores)


if __name__ == "__main__":
    given = arguments(__doc__, "runs/tic-tac-toe", BASE_STEPS)
    print(f"playing at random scores {at_random(pyspiel.load_game(GAME).new_initial_state()):.3f}")
    tokenizer = agent_tokenizer(0, 9, words=("Legal actions: ",))
    base = given.out / f"base-{given.base_steps}"
    make_base(base, tokenizer, dialogue, FormRecipe(given.base_steps, batch=32))
    learn(base, given.out, given.seed, [*SETTINGS, *given.settings])
