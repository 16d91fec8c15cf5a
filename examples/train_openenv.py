"""A model learns on a real OpenEnv server: `python examples/train_openenv.py`, under a minute.

`make setup-openenv` comes first: the server runs in .venv-openenv, the trainer does not. The model
is a tiny one that is made here and says a few words. Everything else is `python -m miner train`
with examples/openenv/echo.py, whose reward is the length of a reply.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.__main__ import main
from miner.config.out_folder import made_once
from miner.heavy_imports import quiet_libraries
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.form import FormRecipe, Piece, build_form_base
from miner.tiny_model.tokenizer import EOS, ROLES

APP = Path(__file__).parent / "openenv" / "echo.py"
WORDS = ("well", "hello", "there", "sing", "along", "with", "us", "now")
ASKED = "Say something."
BASE_STEPS = 60
SETTINGS = (
    "environment.channel=openenv",
    f"environment.openenv.app={APP}",
    "environment.openenv.max_turns=1",
    "threads=1",
    "rollout.groups_per_step=8",
    "rollout.max_reply_tokens=24",
    "optimizer.max_steps=15",
    "optimizer.learning_rate=2e-3",
    "evaluation.every_steps=5",
    "evaluation.episodes=50",
)


def dialogue(rng: random.Random) -> list[Piece]:
    """One to seven words, mostly few."""
    _, user, assistant = ROLES
    count = min(rng.randint(1, 7), rng.randint(1, 7))
    said = " ".join(rng.choice(WORDS) for _ in range(count))
    return [(f"{user}{ASKED}{EOS}{assistant}", False), (f"{said}{EOS}", True)]


def build_base(out: Path, steps: int = BASE_STEPS) -> Path:
    """Make the base model if there is none."""
    words = (ASKED, *WORDS, *(f" {word}" for word in WORDS))
    return make_base(out, agent_tokenizer(0, 9, words=words), dialogue, FormRecipe(steps))


def make_base(
    out: Path,
    tokenizer: PreTrainedTokenizerBase,
    dialogue: Callable[[random.Random], list[Piece]],
    recipe: FormRecipe,
) -> Path:
    """Make a base model of dialogues if there is none, with ten lines of progress."""

    def show(step: int, loss: float) -> None:
        if step % max(1, recipe.steps // 10) == 0:
            print(f"base model: step {step} of {recipe.steps}, loss {loss:.2f}", flush=True)

    def build(folder: Path) -> None:
        build_form_base(folder, tokenizer, dialogue, recipe=recipe, progress=show)

    return made_once(out, build)


def arguments(about: str | None, out: str, base_steps: int) -> argparse.Namespace:
    """Seed, folder, and settings that win over the example's."""
    quiet_libraries()
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base-steps", type=int, default=base_steps)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as for miner train")
    return parser.parse_args()


def learn(base: Path, out: Path, seed: int, settings: Sequence[str]) -> None:
    """Train; the report is written at the end."""
    sys.argv[1:] = [
        "train",
        f"model.path={base}",
        f"output.dir={out / f'model-{seed}'}",
        f"run_dir={out / f'run-{seed}'}",
        f"seed={seed}",
        *settings,
    ]
    main()


if __name__ == "__main__":
    given = arguments(__doc__, "runs/echo", BASE_STEPS)
    own = build_base(given.out / f"base-{given.base_steps}", given.base_steps)
    learn(own, given.out, given.seed, [*SETTINGS, *given.settings])
