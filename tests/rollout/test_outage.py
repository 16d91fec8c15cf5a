"""Rollouts and evaluations on real servers that are killed and started again."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from miner.environments import EpisodeTask, Observation
from miner.environments.graded import GradedSource
from miner.environments.outages import Outages, Stopwatch
from miner.environments.playing import TextConversation
from miner.environments.step import StepSource
from miner.evaluation.runner import Rules, evaluate
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import RetryParams, Scheduler
from tests.builders import ScriptedSampler, build_sample, build_tokenizer
from tests.evaluation.scripted import ScriptedPolicy
from tests.machine import Machine

TOKENIZER = build_tokenizer()
REPLY = build_sample(
    [*TOKENIZER("0 or 1", add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id]
)
TASKS = [EpisodeTask("goofspiel", 5 * number, number) for number in range(6)]
RETRY = RetryParams(infrastructure_attempts=1, other_attempts=1, pause_seconds=0.0)
Source = StepSource | GradedSource


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.close()


def kills(machine: Machine, at: int = 20) -> Callable[[int], None]:
    """Kills the first server when so many replies were given: in mid-game, with all open."""
    return lambda number: machine.kill(0) if number == at else None


def restarts(machine: Machine, at: int) -> Callable[[int], None]:
    """Starts the first server again in the pause of this number."""

    def pause(number: int) -> None:
        if number == at:
            machine.start(0)

    return pause


class Watched:
    """Outages of a source whose pauses are given by the test."""

    def __init__(self, source: Source, pause: Callable[[int], None]) -> None:
        self.said: list[str] = []
        self.pauses: list[float] = []
        self._pause = pause
        self.patience = 1.0
        self.outages = Outages(
            source,
            Stopwatch(),
            patience=lambda: self.patience,
            note=self.said.append,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.to_thread(self._pause, len(self.pauses))


class CountedPolicy(ScriptedPolicy):
    """Never names one action; tells the test how many replies it has given."""

    def __init__(self, at_reply: Callable[[int], None]) -> None:
        super().__init__(("0 or 1",))
        self._at_reply = at_reply

    def conversation(self, task: EpisodeTask) -> TextConversation:
        conversation = super().conversation(task)
        answer = conversation.answer

        async def counted(chat: Observation) -> str:
            reply = await answer(chat)
            self._at_reply(len(self.shown))
            return reply

        conversation.answer = counted
        return conversation


def scheduler(source: Source, watched: Watched, at_reply: Callable[[int], None]) -> Scheduler:
    replies = 0

    def reply(prompt_ids: Sequence[int]) -> Sample:
        nonlocal replies
        replies += 1
        at_reply(replies)
        return REPLY

    return Scheduler(
        source,
        sampled(
            ScriptedSampler(reply),
            ChatRenderer(TOKENIZER),
            EpisodeParams(SamplingParams(max_tokens=8), max_tokens=100_000),
        ),
        retry=RETRY,
        outages=watched.outages,
    )


async def test_episodes_of_a_server_that_stays_away_go_to_the_others(machine: Machine) -> None:
    source = GradedSource([machine.start(), machine.start()])
    watched = Watched(source, lambda number: pytest.fail("a server is there: nothing waits"))
    rollouts = scheduler(source, watched, kills(machine))
    for _ in range(2):
        results = await rollouts.run([Group(task, 2) for task in TASKS])
        assert not any(result.lost for result in results)
    assert source.open().server == source.servers[1]  # nobody asks the dead one any more
    (said,) = watched.said
    assert said.startswith(f"environment server {source.servers[0]} (")
    assert said.endswith("does not answer: episodes go to the other 1 of 2 environment servers")
    await source.close()


async def test_episodes_are_lost_once_patience_is_over(machine: Machine) -> None:
    source = StepSource([machine.start()])

    def lose_patience(number: int) -> None:
        watched.patience = 0.0

    watched = Watched(source, lose_patience)
    results = await scheduler(source, watched, kills(machine)).run(
        [Group(task, 2) for task in TASKS]
    )
    await source.close()
    assert sum(len(result.lost) for result in results) > 0
    assert watched.pauses == [1]
    assert len(watched.said) == 1


async def test_an_evaluation_continues_where_the_servers_come_back(machine: Machine) -> None:
    source = GradedSource([machine.start()])
    watched = Watched(source, restarts(machine, at=2))
    policy = CountedPolicy(kills(machine, at=10))
    rules = Rules(concurrency=6, retry=RETRY)
    result = await evaluate(policy, source, TASKS, rules, outages=watched.outages)
    await source.close()
    assert [(e.task_id, e.seed) for e in result.episodes] == [(t.task_id, t.seed) for t in TASKS]
    assert all(e.score is not None for e in result.episodes)
    assert watched.pauses == [1, 2]
