"""The command line of training, run to its end by tests."""

import os
import subprocess
import sys


def miner(*arguments, **environ):
    """Run the command line to its end; servers only if they are named."""
    clean = {k: v for k, v in os.environ.items() if k != "ENVIRONMENT_SERVER_URLS"}
    return subprocess.run(
        [sys.executable, "-m", "miner", *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def places(tmp_path, base):
    return [
        f"model.path={base}",
        f"output.dir={tmp_path / 'out' / 'task' / 'repo'}",
        f"run_dir={tmp_path / 'run'}",
    ]
