#!/usr/bin/env python3
"""Evaluate a model by hand as the tournament does: one command, nothing needed but the model.

    python scripts/manual_environment_eval.py MODEL_FOLDER
    python scripts/manual_environment_eval.py http://localhost:30000/v1
    python scripts/manual_environment_eval.py match

MODEL is a folder, the URL of an OpenAI-compatible endpoint, or a baseline (random, match, highest,
lowest). Plays the grader's 250 Goofspiel episodes on the servers of ENVIRONMENT_SERVER_URLS if it
is set, else in this process. Further words are KEY=VALUE as for `python -m miner evaluate`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.config.evaluation_run import BaselineName

BASELINES: tuple[str, ...] = get_args(BaselineName)


def arguments(given: list[str]) -> list[str]:
    """The arguments of `python -m miner` for those of this script.

    Raises: `ValueError` when MODEL is missing or is neither a folder, a URL nor a baseline.
    """
    if not given or given[0].startswith("-"):
        raise ValueError(
            f"MODEL is missing: name a folder, a URL or a baseline ({', '.join(BASELINES)}) first"
        )
    model, *options = given
    if Path(model).is_dir():
        who = "model.path"
    elif model in BASELINES:
        who = "policy"
    elif model.startswith(("http://", "https://")):
        who = "llm_url"
    else:
        raise ValueError(
            f"{model} is neither a baseline ({', '.join(BASELINES)}) nor a folder nor a URL: check "
            "its spelling"
        )
    return ["evaluate", f"{who}={model}", *options]


if __name__ == "__main__":
    if sys.argv[1:] in (["--help"], ["-h"]):
        print((__doc__ or "").strip())
        sys.exit()
    try:
        sys.argv[1:] = arguments(sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}; --help shows examples", file=sys.stderr)
        sys.exit(2)
    from miner.__main__ import main

    main()
