"""Paths in the container, and the three roots that the user may move.

Invariants: only `checkpoints_dir` (and /tmp, for supervisord's socket) is written to; the folder at
`output_dir` is the published model and nothing else is ever put into it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint.job import Job
from miner.config.contract import CACHE_DIR, CHECKPOINTS_DIR


@dataclass(frozen=True)
class Paths:
    """Folders of one run.

    Attributes:
        cache_dir: read-only; holds models/{name with "/" -> "--"}.
        model_dir: the base model.
        output_dir: folder from which the validator takes the published model.
        run_dir: checkpoints, heartbeat, resolved settings, caches; beside the output, never in it.
    """

    cache_dir: Path
    model_dir: Path
    output_dir: Path
    run_dir: Path

    @classmethod
    def of(cls, job: Job, environ: Mapping[str, str] = os.environ) -> Paths:
        """Paths of `job`; MINER_CACHE_DIR and MINER_CHECKPOINTS_DIR replace the roots."""
        cache = Path(environ.get("MINER_CACHE_DIR", CACHE_DIR)).absolute()
        checkpoints = Path(environ.get("MINER_CHECKPOINTS_DIR", CHECKPOINTS_DIR)).absolute()
        return cls(
            cache_dir=cache,
            model_dir=cache / "models" / job.model.replace("/", "--"),
            output_dir=checkpoints / job.task_id / job.repo_name,
            # Miners of one task share the folder above. A repository's name has no leading dot.
            run_dir=checkpoints / job.task_id / f".run-{job.repo_name}",
        )
