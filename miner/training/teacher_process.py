"""Teachers in a process of their own, which makes the demonstrations of step after step.

In a thread, Python's lock would have the trainer wait for them: on a GPU they take longer than all
else in a step of a small model. A process that cannot be started, or ends, leaves its steps to the
thread that asks it.

As a program: standard input has the pickled `Teachers`, then numbers of steps; standard output
gets their demonstrations.
"""

import logging
import os
import pickle
import sys
import traceback
from subprocess import PIPE, Popen
from typing import IO

from miner.config.errors import ConfigurationError
from miner.heavy_imports import quiet_libraries
from miner.training.teachers import EncodedDemonstration, Teachers

logger = logging.getLogger(__name__)


class TeacherProcess:
    """A process of teachers, used from one thread at a time; it starts with the first step."""

    def __init__(self, teachers: Teachers) -> None:
        self._teachers = teachers
        self._process: Popen[bytes] | None = None
        self._lost = False

    def made(self, step: int) -> list[EncodedDemonstration]:
        """Those of a step. Raises: as `Teachers.made`."""
        if not self._lost:
            try:
                return self._asked(step)
            except (OSError, EOFError, pickle.PickleError, TypeError, AttributeError) as error:
                self._lost = True
                logger.warning("no process of teachers, which play in a thread: %r", error)
        return self._teachers.made(step)

    def _asked(self, step: int) -> list[EncodedDemonstration]:
        process = self._process
        first = () if process else (self._teachers,)
        if process is None:
            process = self._process = Popen(
                [sys.executable, "-m", __name__],
                stdin=PIPE,
                stdout=PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                process_group=0,  # it ends with its input, not with what stops the trainer
            )
        assert process.stdin
        assert process.stdout
        for given in (*first, step):
            pickle.dump(given, process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
        if isinstance(answer, Exception):
            raise answer
        found: list[EncodedDemonstration] = answer
        return found


def answer_steps(steps: IO[bytes], answers: IO[bytes]) -> None:
    """Make what is asked for until the input ends."""
    teachers: Teachers = pickle.load(steps)
    while True:
        try:
            step: int = pickle.load(steps)
        except EOFError:
            return
        answer: list[EncodedDemonstration] | Exception
        try:
            answer = teachers.made(step)
        except ConfigurationError as error:
            answer = error
        except Exception:
            answer = RuntimeError(traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()


def main() -> None:
    """Answer on what was standard output, where a teacher's prints would be in the way."""
    quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer_steps(sys.stdin.buffer, answers)
    except BrokenPipeError:  # the trainer ended meanwhile
        os._exit(0)


if __name__ == "__main__":
    main()
