"""What the validator's own baseline scored, if it says so: BASELINE_STATS_PATH, for the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from entrypoint.preflight import Check

VARIABLE = "BASELINE_STATS_PATH"
LONGEST_NAME = 40


class _Baseline(BaseModel):
    env_stats: dict[str, object]


def check_baseline(environ: Mapping[str, str], environments: Sequence[str]) -> Iterator[Check]:
    """One line for each game with numbers, those of the job first; none where no file is named.

    Nothing is decided by them: they are another player's, a search that sees hidden cards.
    """
    path = environ.get(VARIABLE)
    if not path:
        return
    try:
        stats = _Baseline.model_validate_json(Path(path).read_bytes()).env_stats
    except (OSError, ValidationError):
        yield Check("warn", "baseline", f"{VARIABLE} {path} holds no object env_stats: ignored")
        return
    for name in sorted(stats, key=lambda name: (name not in environments, name)):
        shown = _line(stats[name])
        if shown:
            yield Check("ok", "baseline", f"{name[:LONGEST_NAME]}: {shown}")


def _line(stats: object) -> str:
    if not isinstance(stats, dict):
        return ""
    mean, std, episodes = (stats.get(key) for key in ("mean_score", "std_score", "num_episodes"))
    if isinstance(mean, bool) or not isinstance(mean, int | float):
        return ""
    spread = f" (standard deviation {std:.3f})" if isinstance(std, int | float) else ""
    return f"mean score {mean:.3f}{spread} over {episodes} episodes"
