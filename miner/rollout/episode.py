"""One episode as a coroutine: observe, render, sample, answer, until the environment says done.

Invariants:
* an episode ends as a `Trajectory` with the graded score or raises a typed error; it never turns
  trouble into a score;
* the sampler's session is ended in every case; the environment belongs to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from miner.environments.base import Environment, EpisodeTask, Message, Transition
from miner.environments.errors import ProtocolError
from miner.inference.sampler import Sampler, SamplingParams
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import Trajectory, TrajectoryBuilder


@dataclass(frozen=True, slots=True)
class EpisodeParams:
    """How to play an episode.

    Attributes:
        sampling: how to sample each reply.
        max_tokens: most tokens that prompt and completion of the episode may have together.
    """

    sampling: SamplingParams
    max_tokens: int


class EpisodeTooLong(Exception):
    """The next reply might not fit into the episode's token limit.

    It is a failure and not a score of 0: where the limit ends an episode, the game has not been
    lost. A limit that many episodes hit is too low for the game (or the replies are too long), and
    the scheduler's statistics count them.
    """


class Stopwatch:
    """Adds up the time spent inside `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


async def play_episode(
    environment: Environment,
    task: EpisodeTask,
    sampler: Sampler,
    renderer: ChatRenderer,
    params: EpisodeParams,
    session: int,
) -> Trajectory:
    """Play `task` to its end.

    Args:
        session: number of this conversation, unique among those that the sampler serves.

    Raises: EnvironmentFault, SamplerError, EpisodeTooLong.
    """
    playing, sampling = Stopwatch(), Stopwatch()
    try:
        with playing:
            observation = await environment.reset(task)
        _check_messages(observation.messages, environment)
        sampling_params = replace(params.sampling, stop=params.sampling.stop + observation.stop)
        builder = TrajectoryBuilder(renderer, task, observation.messages)
        while True:
            prompt_ids = builder.prompt_ids
            _check_room(prompt_ids, params, task)
            with sampling:
                sample = await sampler.sample(prompt_ids, sampling_params, session=session)
            reply = builder.add_reply(sample)
            with playing:
                transition = await environment.step(reply)
            score = _checked_score(transition, environment)
            builder.add_transition(transition)
            if score is not None:
                break
    finally:
        await sampler.end_session(session)
    return replace(
        builder.build(score),
        server=environment.server,
        sampler_seconds=sampling.seconds,
        environment_seconds=playing.seconds,
    )


def _check_room(prompt_ids: Sequence[int], params: EpisodeParams, task: EpisodeTask) -> None:
    needed = len(prompt_ids) + params.sampling.max_tokens
    if needed > params.max_tokens:
        raise EpisodeTooLong(
            f"{task} needs up to {needed} tokens ({len(prompt_ids)} held, "
            f"{params.sampling.max_tokens} for the next reply), the limit is {params.max_tokens}: "
            "raise the episode's limit or lower that of a reply"
        )


def _check_messages(messages: Sequence[Message], environment: Environment) -> None:
    if not messages:
        raise ProtocolError(
            f"{environment.server} went on with the episode but showed no messages to answer",
            server=environment.server,
        )


def _checked_score(transition: Transition, environment: Environment) -> float | None:
    """The score of a final transition, None for any other one."""
    score = transition.score
    if not transition.done:
        if not transition.appended:
            _check_messages(transition.messages, environment)
        return None
    if score is None or not 0.0 <= score <= 1.0:
        raise ProtocolError(
            f"{environment.server} ended the episode with score {score!r}, expected 0..1",
            server=environment.server,
        )
    return score
