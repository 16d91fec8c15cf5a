"""`python -m miner.tiny_model --out DIR [--seed N] [--steps N]`: make the tiny base model."""

import argparse
import time
from pathlib import Path

from miner.config.errors import one_sentence
from miner.heavy_imports import quiet_libraries
from miner.tiny_model.build import Recipe, build_tiny_model, is_made
from miner.tiny_model.warm_start import WarmStartRecipe


def main() -> None:
    """Parse the command line, make the model unless it is there already, and print its path."""
    quiet_libraries()
    parser = argparse.ArgumentParser(prog="python -m miner.tiny_model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default 0)")
    steps = WarmStartRecipe().steps
    parser.add_argument(
        "--steps", type=int, default=steps, help=f"of warm start, at most (default {steps})"
    )
    arguments = parser.parse_args()
    out, seed = arguments.out, arguments.seed
    recipe = Recipe(warm_start=WarmStartRecipe(steps=arguments.steps))
    if is_made(out, recipe=recipe, seed=seed):
        print("the tiny base model is there already", flush=True)
    else:
        print(
            f"making the tiny base model: {arguments.steps} steps at most, kept for next time",
            flush=True,
        )
        began = time.monotonic()
        with one_sentence():
            build_tiny_model(out, recipe=recipe, seed=seed, progress=_print_progress)
        print(f"made in {time.monotonic() - began:.0f} s", flush=True)
    print(out)


def _print_progress(step: int, total: int, loss: float) -> None:
    if step % 100 == 0 or step == total:
        print(f"step {step}/{total} loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
