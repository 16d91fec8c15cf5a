"""Publishes until it is killed: the other side of `test_publisher`.

`OUTPUT MODE MODEL MODEL` kills one forked publisher after another, each one file operation later
than the one before, and prints what lay at the output path at that instant and after the next
publisher had been opened, as JSON.
"""

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from miner.publishing import filesystem
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model


def open_publisher(output: Path) -> Publisher:
    return Publisher(output, full_check=False)


def cannot_exchange(first: Path, second: Path) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


def copy_of(model: Path) -> Callable[[Path], None]:
    """A `save` that writes a copy of `model`."""

    def save(folder: Path) -> None:
        shutil.copytree(model, folder, dirs_exist_ok=True)

    return save


def publish(publisher: Publisher, model: Path, step: int) -> None:
    publisher.publish(copy_of(model), PublishedScore(step))


def loop(output: Path, models: list[Path]) -> None:
    """Publish the models in turn until this process is killed (`benchmarks.chaos`)."""
    publisher = open_publisher(output)
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


def publish_until(instant: int, output: Path, model: Path) -> None:
    """Publish `model` as step 1 in this process and kill it at its file operation `instant`."""
    operations = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        is_file_operation = event == "open" or event.startswith(("os.", "shutil.", "ctypes."))
        if is_file_operation and next(operations) == instant:
            os.kill(os.getpid(), signal.SIGKILL)

    publisher = open_publisher(output)
    sys.addaudithook(hook)
    publish(publisher, model, 1)


def every_instant(output: Path, models: list[Path]) -> None:
    seen = []
    for instant in itertools.count(1):
        publish(open_publisher(output), models[0], 0)
        child = os.fork()
        if child == 0:
            publish_until(instant, output, models[1])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        at_kill = step_at(output)
        open_publisher(output)
        leftovers = [child.name for child in output.parent.iterdir() if child != output]
        seen.append({"at_kill": at_kill, "reopened": step_at(output), "siblings": leftovers})
        if not os.WIFSIGNALED(status):
            break
    print(json.dumps(seen))


if __name__ == "__main__":
    output, mode, *models = sys.argv[1:]
    if mode == "fallback":
        filesystem.exchange_folders = cannot_exchange
    every_instant(Path(output), [Path(model) for model in models])
