"""Plays a policy on a list of episodes under the grader's rules.

Invariants:
* every task comes out exactly once, in the list's order;
* only an environment whose infrastructure failed in every try and a prompt that the engine has no
  room for exclude an episode; a time-out, a protocol violation, a failing policy and three invalid
  replies all score 0;
* each try opens one environment and one conversation, and closes both whatever happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from miner.background_loop import take_back_cancellation
from miner.config.contract import GAMES, agent_seat, is_game
from miner.config.errors import ConfigurationError
from miner.environments import (
    EnvironmentSource,
    EpisodeTask,
    InfrastructureError,
    ProtocolError,
    Transition,
)
from miner.environments.games import clean_reply
from miner.environments.outages import MOST_REPLAYS, Outages
from miner.environments.playing import ChatPlayer, play
from miner.evaluation.policies import Policy, PolicyError, PromptTooLongError
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Failure, Reply
from miner.games import deck_size

GRADER_CONCURRENCY = 4
GRADER_TIMEOUT_S = 180.0
GRADER_TRIES = 3


@dataclass(frozen=True, slots=True)
class Rules:
    """The grader's limits; every field may be relaxed for a quicker look.

    Attributes:
        concurrency: episodes played at once (the source's capacity is never exceeded).
        timeout_s: seconds until a try is given up with score 0; None waits for ever.
        tries: how often an episode is started before infrastructure failures exclude it.
        retry_delay_s: pause before each retry.
    """

    concurrency: int = GRADER_CONCURRENCY
    timeout_s: float | None = GRADER_TIMEOUT_S
    tries: int = GRADER_TRIES
    retry_delay_s: float = 1.0


@dataclass(slots=True)
class _Try:
    """Result of one try of an episode; filled in as it goes, so a time-out loses nothing."""

    score: float | None = None
    failure: Failure | None = None
    message: str = ""
    server: str = ""
    replies: list[Reply] = field(default_factory=list)


async def evaluate(
    policy: Policy,
    source: EnvironmentSource,
    tasks: Sequence[EpisodeTask],
    rules: Rules | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
    outages: Outages | None = None,
    *,
    interruptible: bool = False,
) -> EvaluationResult:
    """Play `policy` once on each of `tasks`, several at a time.

    Args:
        on_episode: called with each record as soon as its episode is decided.
        outages: waits for servers that go away; a try that an outage ended is not counted.
        interruptible: when cancelled, return the episodes that were decided, if there are any.

    Raises: `ConfigurationError` for an empty list, or when a task cannot be played at all.
    """
    if not tasks:
        raise ConfigurationError("no episodes to evaluate: the list of tasks is empty")
    rules = rules or Rules()
    started = time.monotonic()
    slots = asyncio.Semaphore(max(1, min(rules.concurrency, source.capacity)))

    async def run(task: EpisodeTask) -> EpisodeRecord:
        async with slots:
            await asyncio.sleep(0)  # baselines never wait: let an interrupt in
            record = await _decide(policy, source, task, rules, outages)
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


async def _decide(
    policy: Policy,
    source: EnvironmentSource,
    task: EpisodeTask,
    rules: Rules,
    outages: Outages | None,
) -> EpisodeRecord:
    """Try `task` until it is decided or its tries are used up."""
    started = time.monotonic()
    avoid: set[str] = set()
    for tries in range(1, rules.tries + 1):
        if tries > 1:
            await asyncio.sleep(rules.retry_delay_s)
        for _ in range(1 + MOST_REPLAYS):
            attempt = await _attempt(policy, source, task, avoid, rules.timeout_s)
            failed = attempt.failure == "infrastructure"
            if not (failed and outages and await outages.waited_out(attempt.server)):
                break
        if attempt.failure != "infrastructure":
            break
        avoid.add(attempt.server)
    return EpisodeRecord(
        environment=task.environment,
        task_id=task.task_id,
        seed=task.seed,
        opponent=task.opponent,
        seat=agent_seat(task.seed) if is_game(task.environment) else None,
        deck_size=deck_size(task.environment, task.task_id),
        score=attempt.score,
        failure=attempt.failure,
        message=attempt.message,
        tries=tries,
        seconds=time.monotonic() - started,
        replies=tuple(attempt.replies),
    )


async def _attempt(
    policy: Policy,
    source: EnvironmentSource,
    task: EpisodeTask,
    avoid: set[str],
    timeout_s: float | None,
) -> _Try:
    """One try. Raises only what no retry and no zero can answer for (settings, defects)."""
    attempt = _Try()
    try:
        async with asyncio.timeout(timeout_s):
            await _play(policy, source, task, avoid, attempt)
    except InfrastructureError as error:
        attempt.score, attempt.failure, attempt.message = None, "infrastructure", str(error)
        attempt.server = error.server or attempt.server
    except ProtocolError as error:
        attempt.score, attempt.failure, attempt.message = 0.0, "protocol", str(error)
    except PromptTooLongError as error:
        attempt.score, attempt.failure, attempt.message = None, "too_long", str(error)
    except PolicyError as error:
        attempt.score, attempt.failure, attempt.message = 0.0, "policy", str(error)
    except TimeoutError:
        attempt.score, attempt.failure = 0.0, "timeout"
        attempt.message = f"no result within {timeout_s:g} s" if timeout_s else "timed out"
    return attempt


async def _play(
    policy: Policy,
    source: EnvironmentSource,
    task: EpisodeTask,
    avoid: set[str],
    attempt: _Try,
) -> None:
    def record(text: str, transition: Transition) -> None:
        number = any(character.isdigit() for character in clean_reply(text))
        reply = Reply(
            text=text,
            action=transition.action,
            valid=transition.valid,
            number=number,
            fault=transition.fault,
        )
        if task.environment not in GAMES:
            reply = reply.model_copy(update={"shown": player.shown})
        attempt.replies.append(reply)

    player = ChatPlayer(policy.conversation(task), record)
    environment = source.open(avoid)
    attempt.server = environment.server
    try:
        attempt.score = await play(environment, task, player)
    finally:
        await environment.close()
    last = attempt.replies[-1]
    if not last.valid:
        attempt.failure = "invalid_replies"
        fault = last.fault or "no legal action"
        attempt.message = f"{fault} in the last reply {last.text[:80]!r}"


def _shared_name(tasks: Sequence[EpisodeTask]) -> str:
    """The game of all tasks; of several, what stands before the colon in the names of all."""
    names = {task.environment for task in tasks}
    return names.pop() if len(names) == 1 else tasks[0].environment.partition(":")[0]
