"""Makes the duels' tiny base model: `python -m miner.duel.tiny_base FOLDER`."""

import sys
from pathlib import Path

from miner.duel.tiny_base.build import build_duel_base


def main() -> None:
    """Build into the folder named."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)

    def say(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)

    print(build_duel_base(Path(sys.argv[1]), progress=say))


if __name__ == "__main__":
    main()
