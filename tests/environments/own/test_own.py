"""One's own environment: its episodes, its tasks, and what the check before training refuses."""

import asyncio
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from examples.guess import Guess
from miner.config.errors import ConfigurationError
from miner.environments import Environment, EpisodeTask, InfrastructureError, ProtocolError
from miner.environments.own import Step, TextEnvironment
from miner.environments.own.check import check_environment
from miner.environments.own.source import OwnEnvironment, OwnSource
from miner.environments.playing import TextConversation, play
from miner.environments.seeded_tasks import SeededTasks
from miner.evaluation.runner import Rules, evaluate
from miner.rollout.groups import Group
from miner.rollout.scheduler import RetryParams, Scheduler
from tests.evaluation.scripted import ScriptedPolicy

AT_ONCE = RetryParams(pause_seconds=0.0)


class Adding(TextEnvironment):
    """Sound: graded by how near the answer comes, on a scale of its own."""

    max_turns = 2
    score_range = (-1.0, 3.0)
    replies = ("3", "8", "11")

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.sum = rng.randint(1, 9) + rng.randint(1, 9)
        return f"which number, {seed}?"

    def step(self, reply: str) -> Step:
        if not reply.strip().isdecimal():
            return Step("a number", valid=np.bool_(False))
        return Step(score=np.float32(3.0) if int(reply) == self.sum else 0.0)


def task(kind: type[TextEnvironment], seed: int = 1) -> EpisodeTask:
    return EpisodeTask(kind.__name__, seed, seed, "none")


async def two_begun(kind: type[TextEnvironment]) -> tuple[OwnEnvironment, OwnEnvironment]:
    """Two episodes of a source, at their first replies."""
    source = OwnSource(kind)
    pair = source.open(), source.open()
    for environment in pair:
        await environment.reset(task(kind))
    return pair


async def checked(kind: type[TextEnvironment]):
    return await check_environment(kind, OwnSource(kind), SeededTasks(kind.__name__, kind.problems))


async def test_an_episode_ends_with_its_score_on_the_common_scale() -> None:
    environment = OwnSource(Adding).open()
    shown = await environment.reset(task(Adding))
    assert [message["content"] for message in shown.messages] == ["which number, 1?"]
    assert shown.too_long_forfeits
    again = await environment.step("what?")
    assert (again.done, again.valid, again.messages[0]["content"]) == (False, False, "a number")
    ended = await environment.step("99")
    assert (ended.done, ended.score, ended.valid) == (True, 0.25, True)


async def test_the_last_turn_is_scored_by_the_class_itself() -> None:
    class Patient(Adding):
        def score(self) -> float:
            return 1.0

    for kind, score in ((Adding, 0.0), (Patient, 0.5)):
        environment = OwnSource(kind).open()
        await environment.reset(task(kind))
        assert not (await environment.step("no")).done
        ended = await environment.step("no")
        assert (ended.done, ended.score, ended.valid) == (True, score, False)
        with pytest.raises(ProtocolError, match="no episode is open"):
            await environment.step("no")


async def test_coroutines_and_what_the_class_shows_around_its_texts() -> None:
    class Waiting(Adding):
        system = "Answer with a number.\ud83d"
        stop = ("</answer>",)

        async def reset(self, seed: int) -> str:  # type: ignore[override]
            return Adding.reset(self, seed) + "\ud83d"

        async def step(self, reply: str) -> Step:  # type: ignore[override]
            step = Adding.step(self, reply)
            return replace(step, text=step.text and step.text + "\ud83d")

    environment = OwnSource(Waiting).open()
    shown = await environment.reset(task(Waiting))
    assert [message["role"] for message in shown.messages] == ["system", "user"]
    assert [message["content"][-2:] for message in shown.messages] == [".?", "??"]
    assert (await environment.step("what?")).messages[0]["content"] == "a number?"
    assert shown.stop == ("</answer>",)
    assert (await environment.step("5")).done


@pytest.mark.parametrize("problems", [None, 200])
def test_held_out_tasks_are_never_trained_on(problems: int | None) -> None:
    kind = type("Some", (Adding,), {"problems": problems})
    tasks = SeededTasks(kind.__name__, kind.problems)
    trained = {tasks.training(index, seed).seed for index in range(3000) for seed in (0, 1)}
    held_out = [each.seed for seed in (7, 42) for each in tasks.held_out(40, seed)]
    assert not trained & set(held_out)
    assert len(set(held_out[:40])) == 40
    assert tasks.training(5, 1) == SeededTasks(kind.__name__, kind.problems).training(5, 1)
    if problems:
        assert trained | {each.seed for each in tasks.held_out(40, 0)} == set(range(problems))
        assert len(tasks.held_out(41, 7)) == 40, "there are no more"


async def test_a_sound_environment_is_described() -> None:
    found = await checked(Guess)
    assert "96 episodes of 24 tasks" in found.reason
    assert "scores 0.00 to 1.00" in found.reason
    assert found.notes == ()
    assert found.to_json()["channel"] == "own"
    assert found.to_json()["scoring"] == "Scores are those of Guess."


async def test_a_slow_environment_is_checked_for_a_limited_time() -> None:
    minutes = itertools.count(step=60.0)
    tasks = SeededTasks("Guess", None)
    found = await check_environment(Guess, OwnSource(Guess), tasks, lambda: next(minutes))
    assert "9 episodes of 3 tasks" in found.reason


DRAWN = itertools.count()


class ByCount(Adding):
    def reset(self, seed: int) -> str:
        return f"{super().reset(seed)} {next(DRAWN)}"


class ByGlobalDice(Adding):
    """Alone it is sound; others that are played at the same time draw from the same dice."""

    def reset(self, seed: int) -> str:
        random.seed(seed)
        return super().reset(seed)

    def step(self, reply: str) -> Step:
        return Step(score=float(random.randrange(4)))


class SharedState(Adding):
    """Alone it is sound; others that are played at the same time overwrite the sum."""

    def reset(self, seed: int) -> str:
        text = super().reset(seed)
        type(self).sum = self.__dict__.pop("sum")  # type: ignore[misc]
        return text


class NeverCleared(Adding):
    """Its object remembers the episode before."""

    played = 0

    def reset(self, seed: int) -> str:
        self.played += 1
        return f"{super().reset(seed)} {self.played}"


class Raising(Adding):
    def step(self, reply: str) -> Step:
        if not reply:
            raise KeyError("empty")
        return super().step(reply)


def scoring(value: object) -> type[TextEnvironment]:
    return type("Odd", (Adding,), {"step": lambda self, reply: Step(score=value)})


def returning(value: object) -> type[TextEnvironment]:
    return type("Odd", (Adding,), {"step": lambda self, reply: value})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ByCount, r"ByCount: seed \d+ is another game when played again"),
        (ByGlobalDice, "played side by side"),
        (SharedState, "played side by side"),
        (NeverCleared, "by an object that has played before"),
        (Raising, r"step\(''\) raised KeyError.*test_own.py.*seed \d+"),
        (scoring(3.5), "the score is 3.5, but score_range is -1 to 3"),
        (scoring(float("nan")), "the score is nan"),
        (scoring("3"), "the score is '3'"),
        (scoring(np.float32(3.5)), "the score is np.float32"),
        (returning("ok"), r"returned 'ok': expected a Step"),
        (returning(Step()), "either a text"),
        (returning(Step("on", score=1.0)), "either a text"),
        (returning(Step(1.0)), r"^Odd: step\(.*a Step whose text is 1.0: expected a text"),  # type: ignore[arg-type]
        (returning(Step(np.zeros(2))), "a Step whose text is array"),  # type: ignore[arg-type]
        (returning(Step("on", valid=None)), "whose valid is None: expected True or False"),  # type: ignore[arg-type]
        (returning(Step(score=1.0, valid=re.match("", ""))), "whose valid is <re.Match"),  # type: ignore[arg-type]
        (type("Mute", (Adding,), {"reset": lambda self, seed: ""}), "expected a text to answer"),
    ],
)
async def test_what_cannot_be_trained_on_is_refused(
    kind: type[TextEnvironment], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await checked(kind)


async def test_what_teaches_nothing_is_remarked_upon() -> None:
    class Flat(Adding):
        replies = ("3",)

        def reset(self, seed: int) -> str:
            return "go"

        def step(self, reply: str) -> Step:
            return Step("no", valid=False)

    remarks = " ".join((await checked(Flat)).notes)
    for said in ("episodes scored 0.00", "every seed", "no reply was valid"):
        assert said in remarks


async def test_a_class_that_breaks_later_loses_episodes_and_makes_up_no_score() -> None:
    environment = OwnSource(Raising).open()
    await environment.reset(task(Raising))
    with pytest.raises(ProtocolError, match="raised KeyError"):
        await environment.step("")


@pytest.mark.parametrize(("reply", "score", "failure"), [("", 0.0, "protocol"), ("99", 0.25, None)])
async def test_replies_that_make_the_class_raise_gain_nothing(
    reply: str, score: float, failure: str | None
) -> None:
    rules = Rules(retry=AT_ONCE)
    played = await evaluate(ScriptedPolicy([reply]), OwnSource(Raising), [task(Raising)], rules)
    [record] = played.episodes
    assert (record.score, record.failure) == (score, failure)
    assert ("step('') raised KeyError" in record.message) == (failure is not None)


class Away(Adding):
    """Of a service that is away, for some seeds and replies."""

    def reset(self, seed: int) -> str:
        if seed == 3:
            raise ConnectionError("refused")
        return super().reset(seed)

    def step(self, reply: str) -> Step:
        raise InfrastructureError("the judge is away", server="judge")


@pytest.mark.parametrize("seed", [3, 4])
async def test_what_no_reply_has_caused_counts_nowhere(seed: int) -> None:
    rules, tasks = Rules(retry=AT_ONCE), [task(Away, seed)]
    result = await evaluate(ScriptedPolicy(["1"]), OwnSource(Away), tasks, rules)
    [record] = result.episodes
    assert (record.score, record.failure) == (None, "infrastructure")
    assert ("ConnectionError" in record.message) == (seed == 3)


async def played(
    replies: Iterator[str], environment: Environment, task: EpisodeTask, attempt: int
) -> float:
    async def reply(shown: object) -> str:
        return next(replies)

    return await play(environment, task, TextConversation(reply))


@pytest.mark.parametrize(
    ("replies", "outcomes", "logged"),
    [
        (["", "99"], [0.25], ["is played again: "]),
        (["", ""], [], ["is played again: ", "lost .* after 2 attempts: ProtocolError: "]),
    ],
)
async def test_what_the_class_raises_in_training_is_logged_each_time(
    replies: list[str], outcomes: list[float], logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(OwnSource(Raising), partial(played, iter(replies)), retry=AT_ONCE)
    [result] = await scheduler.run([Group(task(Raising), 1)])
    assert [each for each in result.outcomes if isinstance(each, float)] == outcomes
    where = r"Raising: step\(''\) raised KeyError: 'empty' \(test_own.py, line \d+\)$"
    for line, record in zip(logged, caplog.records, strict=True):
        assert re.search(line + where, record.getMessage())


class Panic(BaseException):
    """As libraries in other languages raise it."""


class Ending(Adding):
    """Ends itself for some replies, in each of the ways that a method can."""

    async def step(self, reply: str) -> Step:  # type: ignore[override]
        if reply == "exit":
            raise SystemExit(3)
        if reply == "interrupt":
            raise KeyboardInterrupt
        if reply == "panic":
            raise Panic("in Rust")
        if reply == "cancel":
            other = asyncio.ensure_future(asyncio.Event().wait())
            other.cancel()
            await other
        return Adding.step(self, reply)


class EndingAtOnce(Ending):
    def step(self, reply: str) -> Step:  # type: ignore[override]
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("kind", "reply", "named"),
    [
        (Ending, "exit", r"SystemExit 3 \(test_own.py, line"),
        (Ending, "interrupt", r"KeyboardInterrupt \(test_own.py, line"),
        (Ending, "panic", r"Panic in Rust \(test_own.py, line"),
        (Ending, "cancel", "RuntimeError: CancelledError"),
        (EndingAtOnce, "exit", r"SystemExit 3 \(test_own.py, line"),
    ],
)
async def test_a_class_that_ends_itself_loses_its_episode_alone(
    kind: type[Adding], reply: str, named: str
) -> None:
    """Not the thread on which all others wait, nor the run."""
    ending, other = await two_begun(kind)
    with pytest.raises(ProtocolError, match=rf"step\('{reply}'\) raised .*{named}"):
        await ending.step(reply)
    await other.reset(task(kind))  # on the same thread
