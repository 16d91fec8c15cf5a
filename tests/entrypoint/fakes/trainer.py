"""A trainer that behaves as told: one word of the script per attempt.

crash, oom: end at once; publish: leave a model and end; orphan: the same, and a child of its own
stays behind; until-asked: heartbeats, and a model when SIGTERM comes; alone: nothing while its
settings name a server, then a model; spoil: its settings can be written no more, then as crash.

An attempt counts once it has done what it was told, so that one that is stopped before, on a slow
machine, is made again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

EXIT_STATUSES = {"crash": 1, "spoil": 1, "oom": 75}


def main() -> None:
    train_dir, output_dir, model_dir = (Path(word) for word in sys.argv[1:4])
    asked = threading.Event()
    record = train_dir / "attempts"
    done = record.read_text().split() if record.exists() else []
    script = sys.argv[4].split(",")
    behaviour = script[min(len(done), len(script) - 1)]
    if behaviour == "until-asked":
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
    print(f"fake trainer: {behaviour}", flush=True)
    step = 0
    while behaviour == "until-asked" and not asked.wait(0.1):
        step += 1
        beat(train_dir, step)
    settings = tomllib.loads((train_dir.parent / "trainer.toml").read_text())
    if behaviour == "alone" and settings["rollout"]["server"]:
        signal.pause()
    if behaviour == "spoil":
        (train_dir.parent / "trainer.toml").unlink()
        (train_dir.parent / "trainer.toml").mkdir()
    if behaviour == "orphan":
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        child = subprocess.Popen(sleeper, start_new_session=True)
        (train_dir / "orphan").write_text(str(child.pid))
    if behaviour not in EXIT_STATUSES:
        shutil.copytree(model_dir, output_dir, dirs_exist_ok=True)
    record.write_text(" ".join([*done, behaviour]))
    sys.exit(EXIT_STATUSES.get(behaviour, 0))


def beat(train_dir: Path, step: int) -> None:
    temporary = train_dir / f".beat-{os.getpid()}"
    temporary.write_text(json.dumps({"time": time.time(), "phase": "rollout", "step": step}))
    temporary.replace(train_dir / "heartbeat.json")


main()
