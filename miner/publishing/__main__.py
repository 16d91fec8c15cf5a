"""The other end of `fresh_process`: `python -m miner.publishing COMMAND WORD...`, answers JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from miner.lifeline import hold_lifeline
from miner.publishing.errors import UnverifiedModelError


def main(arguments: Sequence[str]) -> int:
    """Run one command and print its answer as the last line; returns the exit status."""
    command, *words = arguments
    answer: dict[str, Any] = {"result": {}, "error": None}
    try:
        answer["result"] = _run(command, words)
    except UnverifiedModelError as error:
        answer |= {"error": str(error), "unverified": True}
    except Exception as error:  # the boundary: the parent raises it again, with its own traceback
        answer |= {"error": f"{command}: {type(error).__name__}: {error}"}
    print("\n" + json.dumps(answer))
    return 0 if answer["error"] is None else 1


def _run(command: str, words: Sequence[str]) -> dict[str, Any]:
    if command.startswith("verify"):
        from miner.publishing.verify import verify_model

        path, dtype = words
        strict = command == "verify"
        return asdict(verify_model(Path(path), load=True, strict=strict, dtype=dtype))  # type: ignore[arg-type]
    from miner.publishing.write_weights import convert_base

    convert_base(*map(Path, words))
    return {}


if __name__ == "__main__":
    hold_lifeline()
    sys.exit(main(sys.argv[1:]))
