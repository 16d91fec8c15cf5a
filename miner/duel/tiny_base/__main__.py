"""Makes the duels' tiny base model: `python -m miner.duel.tiny_base FOLDER`."""

import argparse
from pathlib import Path

from miner.config.errors import one_sentence
from miner.config.out_folder import check_new
from miner.duel.tiny_base.build import build_duel_base


def main() -> None:
    """Build into the folder named."""
    parser = argparse.ArgumentParser(prog="python -m miner.duel.tiny_base", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to write, new or empty")
    folder: Path = parser.parse_args().folder

    def say(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)

    with one_sentence():
        check_new(folder)
        print(build_duel_base(folder, progress=say))


if __name__ == "__main__":
    main()
