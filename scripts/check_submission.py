#!/usr/bin/env python3
"""Check whether HEAD can be submitted to the tournament, and print the commit to submit.

    python scripts/check_submission.py [--first-format]

Needs git and nothing else. Ends with 0 if nothing is in the way, else with 1 after a line for each
thing that is. With --first-format the tournament's prompts and chat templates may be missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.config.contract import BUILD_MINUTES, DOCKERFILES

REPOSITORY = Path(__file__).resolve().parent.parent
TOURNAMENT_FILES = ("LICENSE", "NOTICE")
TOURNAMENT_COPIES = (
    "tournament/core/pvp/game_prompts.yml",
    "tournament/core/pvp/bot.py",
    "tournament/core/pvp/tools.py",
    "tournament/core/models/pvp_models.py",
    "tournament/core/pvp/chat_templates/gemma4_base_tool.jinja",
    "tournament/core/pvp/chat_templates/ministral3_base_tool.jinja",
    "tournament/validator/evaluation/evaluators/intercode.py",
)
BUILD_RECORD = ".image-seconds"
"""Written by `make image`: how long the latest build took, and of which commit."""
UNREADABLE = {".pyc", ".pyo", ".so", ".dll", ".dylib", ".exe", ".bin", ".whl", ".zip", ".gz"}
MODELS_AND_DATA = {
    *(".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".pkl"),
    *(".parquet", ".arrow", ".npy", ".npz", ".csv"),
}


def obstacles(repository: Path, *, duels: bool = True) -> Iterator[str]:
    """One sentence for each thing that keeps HEAD of `repository` from being submitted."""
    tracked = _git(repository, "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0")
    for name in TOURNAMENT_FILES:
        if name not in tracked:
            yield f"{name} is not committed: copy the tournament's own file to {name}, unchanged"
    if duels and (absent := [name for name in TOURNAMENT_COPIES if name not in tracked]):
        yield (
            f"not committed: {', '.join(absent)}; duels would be learned on prompts in our own "
            "words, not on those that are graded: `python -m miner prompts --from CLONE` copies "
            "them from a clone of the tournament's repository (--first-format goes without)"
        )
    missing = [name for name in DOCKERFILES if name not in tracked]
    if missing:
        yield f"{', '.join(missing)} is not committed: validators build this file"
    elif others := [name for name in DOCKERFILES if _differ(repository, name, "Dockerfile")]:
        yield f"{', '.join(others)} is not what was tested: make it equal to Dockerfile"
    for name in tracked:
        suffix = Path(name).suffix.lower()
        if suffix in UNREADABLE:
            yield f"{name} is compiled or packed, which the rules forbid: remove it"
        if suffix in MODELS_AND_DATA:
            yield f"{name} looks like a model or data, which the rules forbid: remove it"
    if _git(repository, "status", "--porcelain"):
        yield "the working tree differs from HEAD: commit what belongs to the submission"


def build_warning(repository: Path) -> str:
    """A warning if the image may not be built in time, or its time is unknown; else empty."""
    record = repository / BUILD_RECORD
    if not record.is_file():
        return "the image's build was not timed here: run make image"
    seconds, _, commit = record.read_text().strip().partition(" ")
    if commit != _git(repository, "rev-parse", "HEAD").strip():
        return (
            f"the image was built of {commit or 'an earlier commit'}, not of HEAD: run make image"
        )
    minutes = float(seconds) / 60
    if minutes < BUILD_MINUTES / 2:
        return ""
    return (
        f"the image took {minutes:.0f} minutes to build here, and validators give it "
        f"{BUILD_MINUTES:.0f}: try a faster network, or pin fewer packages in requirements.txt"
    )


def main(repository: Path = REPOSITORY, *, duels: bool = True) -> int:
    """Print the obstacles, or the commit. Returns: the exit status."""
    found = list(obstacles(repository, duels=duels))
    for obstacle in found:
        print(f"not yet: {obstacle}")
    if warning := build_warning(repository):
        print(f"note: {warning}", file=sys.stderr)
    if not found:
        print(f"submit commit {_git(repository, 'rev-parse', 'HEAD').strip()}")
    return 1 if found else 0


def _differ(repository: Path, *names: str) -> bool:
    return len({_git(repository, "rev-parse", f"HEAD:{name}") for name in names}) > 1


def _git(repository: Path, *words: str) -> str:
    if shutil.which("git") is None:
        sys.exit("git is not installed: install it")
    done = subprocess.run(
        ["git", *words], cwd=repository, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"git {words[0]} fails in {repository}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(duels="--first-format" not in sys.argv[1:]))
