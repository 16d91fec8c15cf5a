"""The other end of `fresh_process`: `python -m miner.publishing verify PATH DTYPE`, answers JSON.

`verify-base` holds a base model to what it came with.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from miner.lifeline import hold_lifeline
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.verify import verify_model


def main(arguments: Sequence[str]) -> int:
    """Verify a folder and print the answer as the last line; returns the exit status."""
    command, path, dtype = arguments
    answer: dict[str, Any] = {"result": {}, "error": None}
    try:
        strict = command == "verify"
        report = verify_model(Path(path), load=True, strict=strict, dtype=dtype)  # type: ignore[arg-type]
        answer["result"] = asdict(report)
    except UnverifiedModelError as error:
        answer |= {"error": str(error), "unverified": True}
    except Exception as error:  # the boundary: the parent raises it again, with its own traceback
        answer |= {"error": f"{command}: {type(error).__name__}: {error}"}
    print("\n" + json.dumps(answer))
    return 0 if answer["error"] is None else 1


if __name__ == "__main__":
    hold_lifeline()
    sys.exit(main(sys.argv[1:]))
