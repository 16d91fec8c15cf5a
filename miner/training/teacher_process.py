"""Teachers in a separate process, which makes the demonstrations of step after step.

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

LOST = (OSError, EOFError, ValueError, TypeError, AttributeError, pickle.PickleError)
"""Of a process that ends, or ended, and of teachers that cannot be pickled."""


class TeacherProcess:
    """A process of teachers, used from one thread at a time; it starts with the first step."""

    def __init__(self, teachers: Teachers) -> None:
        self._teachers = teachers
        self._process: Popen[bytes] | None = None
        self._lost = self._ended = False

    def made(self, step: int) -> list[EncodedDemonstration]:
        """Those of a step, none after `end`. Raises: as `Teachers.made`."""
        if not (self._lost or self._ended):
            try:
                return self._asked(step)
            except LOST as error:
                self._lost = True
                self._kill()
                if not self._ended:
                    logger.warning("no process of teachers, which play in a thread: %r", error)
        return [] if self._ended else self._teachers.made(step)

    def end(self) -> None:
        """Make no more, from any thread: the process holds hundreds of megabytes."""
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

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
        if self._ended:  # while it was started
            process.kill()
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
    """Make what is asked for until the input ends, also within the teachers themselves."""
    teachers: Teachers | None = None
    while True:
        try:
            teachers = teachers or pickle.load(steps)
            step: int = pickle.load(steps)
        except (EOFError, pickle.UnpicklingError):
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
    """Answer what came over standard input and output, from which teachers cannot read and to
    which they cannot print."""
    quiet_libraries()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    steps = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        answer_steps(steps, answers)
    except BrokenPipeError:  # the trainer ended meanwhile
        os._exit(0)


if __name__ == "__main__":
    main()
