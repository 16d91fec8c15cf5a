#!/usr/bin/env python3
"""Evaluate a model by hand as the tournament does: one command, nothing needed but the model.

    python scripts/manual_environment_eval.py MODEL_FOLDER
    python scripts/manual_environment_eval.py http://localhost:30000/v1
    python scripts/manual_environment_eval.py match

MODEL is a folder, the URL of an OpenAI-compatible endpoint, or a baseline (random, match, highest,
lowest). Plays the grader's 250 Goofspiel episodes on the servers of ENVIRONMENT_SERVER_URLS if it
is set, else in this process. Further options are those of `python -m miner evaluate --help`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BASELINES = ("random", "match", "highest", "lowest")


def arguments(given: list[str]) -> list[str]:
    """The arguments of `python -m miner` for those of this script."""
    model, *options = given
    if model in BASELINES and not Path(model).is_dir():
        who = "--policy"
    elif model.startswith(("http://", "https://")):
        who = "--llm-url"
    else:
        who = "--model"
    return ["evaluate", who, model, *options]


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit((__doc__ or "").strip())
    from miner.__main__ import main

    sys.argv[1:] = arguments(sys.argv[1:])
    main()
