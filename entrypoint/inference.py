"""`vllm serve`, all of it or none: `python -m entrypoint.inference --kill-after S vllm serve ...`.

vLLM is several processes. When its first one dies of a signal, those with the model live on (seen
with vLLM 0.31) and keep their GPU's memory, so that a restarted server finds none. This process
runs between it and supervisord: when the first process ends, the others are killed. Only where
this process itself is killed do they live on.
"""

import argparse
import math
import os
import shutil
import sys

from entrypoint import reaper


def main() -> int:
    """Run the command to its end; the exit status is its own, 128 + n after signal n."""
    parser = argparse.ArgumentParser(prog="python -m entrypoint.inference")
    parser.add_argument("--kill-after", type=float, required=True, metavar="SECONDS",
                        help="between SIGTERM and SIGKILL")  # fmt: skip
    parser.add_argument("program")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    found = shutil.which(options.program)
    if found is None:
        print(f"inference: there is no program {options.program!r} on PATH", file=sys.stderr)
        return 127
    ended = reaper.run(
        [found, *options.words], os.environ, stop_at=math.inf, kill_after=options.kill_after
    )
    return ended.exit_status if ended.exit_status >= 0 else 128 - ended.exit_status


if __name__ == "__main__":
    sys.exit(main())
