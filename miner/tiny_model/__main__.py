"""`python -m miner.tiny_model --out DIR [--seed N]`: make the tiny base model."""

from __future__ import annotations

import argparse
from pathlib import Path

from miner.tiny_model.build import build_tiny_model


def main() -> None:
    """Parse the command line, make the model, and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m miner.tiny_model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default 0)")
    arguments = parser.parse_args()
    print(build_tiny_model(arguments.out, seed=arguments.seed, progress=_print_progress))


def _print_progress(step: int, total: int, loss: float) -> None:
    if step % 100 == 0 or step == total:
        print(f"step {step}/{total} loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
