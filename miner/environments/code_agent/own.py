"""Custom problems of an agent: a class with `question` and `grade`.

Invariant: a score is a number in [0, 1]; anything else, and any error of `grade`, is a
`ProtocolError`, so that no reward is made up, and replies that make it raise gain nothing. An error
of `question`, and an `InfrastructureError` of either, is an `InfrastructureError`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from miner.config.errors import ConfigurationError
from miner.encodable import encodable
from miner.environments.code_agent.problems import Problem, Problems
from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.own.check import NONSENSE, TASKS
from miner.environments.own.entry import load_class, number_of, with_place
from miner.environments.seeded_tasks import SeededTasks

SETTING = "environment.code_agent.entry"
METHODS = {
    "question": "def question(self, number: int) -> str",
    "grade": "def grade(self, number: int, reply: str) -> float",
}


class CodeProblems:
    """Base of custom problems: one object has them all, by number.

    Attributes:
        problems: how many there are, numbered from 0; a fifth is held out. None: numbers are seeds
            without end, of which those that are held out are never trained on.
    """

    problems: ClassVar[int | None] = None

    def question(self, number: int) -> str:
        """The user's message, the same for the same number."""
        raise NotImplementedError

    def grade(self, number: int, reply: str) -> float:
        """Score in [0, 1] of the last reply, from the end of the last output on."""
        raise NotImplementedError


class OwnProblems(SeededTasks):
    """`Problems` of the class that `entry` names. Raises: `ConfigurationError`."""

    def __init__(self, entry: str) -> None:
        kind = load_class(entry, CodeProblems, METHODS, SETTING)
        super().__init__(kind.__name__, kind.problems)
        self._own = kind()

    def problem(self, task_id: int) -> Problem:
        """Raises: `InfrastructureError`; its `grade` a `ProtocolError`."""
        kind = InfrastructureError
        text = self._called(kind, self._own.question, task_id)
        if not isinstance(text, str) or not text:
            what = f"question({task_id}) returned {text!r}: expected a text to answer"
            raise self._fault(kind, what)
        return Problem(encodable(text), lambda reply: self._grade(task_id, reply))

    def _grade(self, number: int, reply: str) -> float:
        score = self._called(ProtocolError, self._own.grade, number, reply)
        share = number_of(score)
        if share is None or not 0 <= share <= 1:
            raise self._fault(
                ProtocolError,
                f"grade({number}, {reply[:80]!r}) returned {score!r}: expected a number from 0 to "
                "1",
            )
        return share

    def _called(
        self, kind: type[EnvironmentFault], method: Callable[..., Any], *given: object
    ) -> Any:
        try:
            return method(*given)
        except EnvironmentFault:
            raise
        except BaseException as error:  # this is a thread that the caller does not end
            shown = ", ".join(repr(each)[:80] for each in given)
            what = f"{method.__name__}({shown}) raised {with_place(error)}"
            raise self._fault(kind, what) from error

    def _fault(self, kind: type[EnvironmentFault], what: str) -> EnvironmentFault:
        return kind(f"{self.name}: {what}", server=self.name)


async def check_problems(problems: Problems, called: Callable[..., Awaitable[Any]]) -> None:
    """Ask a few problems and grade nonsense.

    Args:
        called: see `CodeAgentSource`.

    Raises: `ConfigurationError` for errors, and for a question that is not a function of its
        number, since GRPO compares the episodes of one.
    """
    numbers = [problems.training(index, seed=0).task_id for index in range(TASKS)]
    try:
        asked = [await called((number,), problems.problem, number) for number in numbers]
        again = [await called((number,), problems.problem, number) for number in numbers]
        for number, problem in zip(numbers, asked, strict=True):
            for reply in NONSENSE:
                await called((number, reply), problem.grade, reply)
    except EnvironmentFault as error:
        raise ConfigurationError(f"{error}; correct {SETTING}") from error
    for number, one, other in zip(numbers, asked, again, strict=True):
        if one.question != other.question:
            raise ConfigurationError(
                f"{problems.name}.question({number}) is {one.question[:80]!r}, and then "
                f"{other.question[:80]!r}: a number must always give the same question"
            )
