"""A trainer that behaves as told: one word of the script per attempt.

crash, oom, refuse, lost: end at once; hang: one heartbeat, then silence; publish: leave a model and
end; orphan: the same, and a child of its own stays behind; until-asked: heartbeats, and a model
when SIGTERM comes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

EXIT_STATUSES = {"crash": 1, "oom": 75, "refuse": 2, "lost": 76}


def main() -> None:
    train_dir, output_dir, model_dir = (Path(word) for word in sys.argv[1:4])
    asked = threading.Event()
    behaviour = next_behaviour(train_dir / "attempts", sys.argv[4].split(","))
    if behaviour == "until-asked":
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
    print(f"fake trainer: {behaviour}", flush=True)
    if behaviour in EXIT_STATUSES:
        sys.exit(EXIT_STATUSES[behaviour])
    if behaviour == "hang":
        beat(train_dir, 1)
        signal.pause()
    if behaviour == "orphan":
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        child = subprocess.Popen(sleeper, start_new_session=True)
        (train_dir / "orphan").write_text(str(child.pid))
    step = 0
    while behaviour == "until-asked" and not asked.wait(0.1):
        step += 1
        beat(train_dir, step)
    shutil.copytree(model_dir, output_dir)


def next_behaviour(record: Path, script: list[str]) -> str:
    done = record.read_text().split() if record.exists() else []
    word = script[min(len(done), len(script) - 1)]
    record.write_text(" ".join([*done, word]))
    return word


def beat(train_dir: Path, step: int) -> None:
    temporary = train_dir / f".beat-{os.getpid()}"
    temporary.write_text(json.dumps({"time": time.time(), "phase": "rollout", "step": step}))
    temporary.replace(train_dir / "heartbeat.json")


main()
