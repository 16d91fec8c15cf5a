"""Publishes until it is killed: the other side of `test_publisher_killed`.

`loop OUTPUT ATOMIC MODEL MODEL` publishes the two models in turn for ever.
`every-instant OUTPUT ATOMIC MODEL MODEL` kills one forked publisher after another, each one file
operation later than the one before, and prints what lay at the output path at that instant and
after the next publisher had been opened, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from miner.publishing.errors import UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model


def open_publisher(output: Path, atomic: bool) -> Publisher:
    return Publisher(output, full_check=False, atomic=atomic)


def publish(publisher: Publisher, model: Path, step: int) -> None:
    publisher.publish(
        lambda folder: shutil.copytree(model, folder, dirs_exist_ok=True), PublishedScore(step)
    )


def loop(output: Path, atomic: bool, models: list[Path]) -> None:
    publisher = open_publisher(output, atomic)
    for step, model in enumerate(itertools.cycle(models)):
        publish(publisher, model, step)
        if step == 0:
            print("ready", flush=True)


def step_at(output: Path) -> int | None:
    """The step of the verified model at `output`, None if no sound model lies there."""
    try:
        verify_model(output, load=False)
    except UnverifiedModelError:
        return None
    return json.loads((output / "miner_publication.json").read_text())["step"]


def publish_until(instant: int, output: Path, atomic: bool, model: Path) -> None:
    """Publish `model` as step 1 in this process and kill it at its file operation `instant`."""
    operations = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        is_file_operation = event == "open" or event.startswith(("os.", "shutil.", "ctypes."))
        if is_file_operation and next(operations) == instant:
            os.kill(os.getpid(), signal.SIGKILL)

    publisher = open_publisher(output, atomic)
    sys.addaudithook(hook)
    publish(publisher, model, 1)


def every_instant(output: Path, atomic: bool, models: list[Path]) -> None:
    seen = []
    for instant in itertools.count(1):
        publish(open_publisher(output, atomic), models[0], 0)
        child = os.fork()
        if child == 0:
            publish_until(instant, output, atomic, models[1])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        at_kill = step_at(output)
        open_publisher(output, atomic)
        leftovers = [child.name for child in output.parent.iterdir() if child != output]
        seen.append({"at_kill": at_kill, "reopened": step_at(output), "siblings": leftovers})
        if not os.WIFSIGNALED(status):
            break
    print(json.dumps(seen))


if __name__ == "__main__":
    command, output, atomic, *models = sys.argv[1:]
    run = {"loop": loop, "every-instant": every_instant}[command]
    run(Path(output), atomic == "atomic", [Path(model) for model in models])
