"""Plays a policy on a list of episodes under the grader's rules.

Invariants:
* every task comes out exactly once, in the list's order;
* only an environment whose infrastructure failed in every try, a prompt that the engine has no room
  for and the end of the time for the whole list exclude an episode, and outside of the grader's
  games, where the clock is this machine's alone, a time-out; a failing policy, three invalid
  replies and a protocol violation score 0, the last one at once in the grader's games and elsewhere
  if it came again: replies that make an environment raise are to gain nothing;
* each try opens one environment and one conversation, and closes both in every case.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from miner.background_loop import take_back_cancellation
from miner.config.channel_facts import FACTS
from miner.config.contract import GAMES
from miner.config.errors import ConfigurationError
from miner.environments import (
    Environment,
    EnvironmentSource,
    EpisodeTask,
    ProtocolError,
    Transition,
)
from miner.environments.base import ILLEGAL_ACTION
from miner.environments.games import clean_reply
from miner.environments.outages import Outages
from miner.environments.playing import TextConversation, play
from miner.evaluation.policies import ForfeitError, Policy, PolicyError, PromptTooLongError
from miner.evaluation.results import EXCLUDING, EpisodeRecord, EvaluationResult, Failure, Reply
from miner.rollout.groups import LostEpisode
from miner.rollout.scheduler import RetryParams, Scheduler

GRADER_CONCURRENCY = 4
GRADER_TIMEOUT_S = 180.0
GRADER_RETRY = RetryParams(infrastructure_attempts=3, episode_seconds=None, pause_seconds=1.0)

_FAILURES: dict[type[Exception], Failure] = {
    ProtocolError: "protocol",
    PromptTooLongError: "too_long",
    ForfeitError: "invalid_replies",
    PolicyError: "policy",
    TimeoutError: "timeout",
}
"""Of an error, the first that fits."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The grader's limits; every field may be relaxed for a quicker look.

    Attributes:
        concurrency: episodes played at once (the source's capacity is never exceeded).
        timeout_s: seconds after which a try ends, with score 0 in the grader's games and excluded
            in others; None waits for ever.
        retry: failures of infrastructure that do not exclude an episode yet.
    """

    concurrency: int = GRADER_CONCURRENCY
    timeout_s: float | None = GRADER_TIMEOUT_S
    retry: RetryParams = GRADER_RETRY


async def evaluate(
    policy: Policy,
    source: EnvironmentSource,
    tasks: Sequence[EpisodeTask],
    rules: Rules | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
    outages: Outages | None = None,
    *,
    seconds: float = math.inf,
    interruptible: bool = False,
) -> EvaluationResult:
    """Play `policy` once on each of `tasks`, several at a time.

    Args:
        on_episode: called with each record as soon as its episode is decided.
        outages: waits for servers that go away; a try that an outage ended is not counted.
        seconds: from now on; episodes that are not decided by then are excluded.
        interruptible: return the decided episodes, if any, when cancelled.

    Raises: `ConfigurationError` for an empty list, or when a task cannot be played at all.
    """
    if not tasks:
        raise ConfigurationError("no episodes to evaluate: the list of tasks is empty")
    rules = rules or Rules()
    started = time.monotonic()
    scheduler = Scheduler(
        source,
        partial(_attempt, policy, rules.timeout_s, source.name),
        retry=rules.retry,
        places=max(1, min(rules.concurrency, source.capacity)),
        outages=outages,
    )

    now = asyncio.get_running_loop().time()
    until = now + seconds if math.isfinite(seconds) else None

    async def run(task: EpisodeTask) -> EpisodeRecord:
        record = await _in_time(scheduler, task, until)
        if on_episode:
            on_episode(record)
        return record

    try:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(run(task)) for task in tasks]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    except asyncio.CancelledError:
        runs = [run for run in runs if not run.cancelled()]
        if not interruptible or not runs:
            raise
        take_back_cancellation()
    return EvaluationResult(
        policy=policy.name,
        channel=source.name,
        environment=_shared_name(tasks),
        temperature=policy.temperature,
        seconds=time.monotonic() - started,
        episodes=tuple(finished.result() for finished in runs),
    )


async def _in_time(
    scheduler: Scheduler[EpisodeRecord], task: EpisodeTask, until: float | None
) -> EpisodeRecord:
    """Play an episode, which is excluded if it is not decided when the event loop's clock says
    `until`."""
    limit = asyncio.timeout_at(until)
    try:
        async with limit:
            outcome = await scheduler.episode(task)
    except TimeoutError:
        if not limit.expired():
            raise
        message = "the time for them was over"
        return EpisodeRecord.of(task, score=None, failure="no_time", message=message)
    return _lost(outcome) if isinstance(outcome, LostEpisode) else outcome


def _scored(channel: str) -> tuple[type[Exception], ...]:
    """Errors that decide an episode of this channel at the first try."""
    at_once = FACTS[channel].first_format
    return tuple(kind for kind in _FAILURES if at_once or kind is not ProtocolError)


async def _attempt(
    policy: Policy,
    timeout_s: float | None,
    channel: str,
    environment: Environment,
    task: EpisodeTask,
    tries: int,
) -> EpisodeRecord:
    """One try. Raises what decides nothing: failures that are not `_scored`, settings, defects."""
    started = time.monotonic()
    replies: list[Reply] = []
    score: float | None = 0.0
    failure: Failure | None = None
    message = ""
    conversation = policy.conversation(task)
    conversation.on_turn = lambda text, to: replies.append(_reply(text, to, conversation, task))
    try:
        async with asyncio.timeout(timeout_s):
            score = await play(environment, task, conversation)
        if not replies[-1].valid and score == 0:
            failure, fault = "invalid_replies", replies[-1].fault or "no legal action"
            message = f"{fault} in the last reply {replies[-1].text[:80]!r}"
    except _scored(channel) as error:
        failure = next(each for kind, each in _FAILURES.items() if isinstance(error, kind))
        if failure == "timeout" and not FACTS[channel].first_format:
            failure = "too_slow"  # no grader times these episodes
        score = None if failure in EXCLUDING else 0.0
        message = str(error) or (f"no result within {timeout_s:g} s" if timeout_s else "timed out")
    return EpisodeRecord.of(
        task,
        score=score,
        failure=failure,
        message=message,
        tries=tries,
        seconds=time.monotonic() - started,
        replies=tuple(replies),
    )


def _reply(text: str, to: Transition, by: TextConversation, task: EpisodeTask) -> Reply:
    numbered = any(character.isdigit() for character in clean_reply(text))
    return Reply(
        text=text,
        action=to.action,
        valid=to.valid,
        number=to.fault == ILLEGAL_ACTION if to.fault else numbered,
        cut=by.cut,
        fault=to.fault,
        shown=() if task.environment in GAMES else by.shown,
        reward=to.reward,
    )


def _lost(lost: LostEpisode) -> EpisodeRecord:
    """The record of an episode that each attempt lost. Raises: `ConfigurationError`."""
    if isinstance(lost.error, ConfigurationError):
        raise lost.error
    message, tries = str(lost.error), lost.attempts
    protocol = isinstance(lost.error, ProtocolError)
    score, failure = (0.0, "protocol") if protocol else (None, "infrastructure")
    return EpisodeRecord.of(lost.task, score=score, failure=failure, message=message, tries=tries)


def _shared_name(tasks: Sequence[EpisodeTask]) -> str:
    """The game of all tasks; of several, what stands before the colon in the names of all."""
    names = {task.environment for task in tasks}
    return names.pop() if len(names) == 1 else tasks[0].environment.partition(":")[0]
