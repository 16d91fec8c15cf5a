"""One episode of the policy that learns: each reply sampled, each token kept.

Invariant: the sampler's session is ended in every case; the environment belongs to the caller.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from miner.environments.base import (
    Environment,
    EpisodeTask,
    Message,
    Observation,
    Transition,
)
from miner.environments.playing import play
from miner.inference.sampler import Sampler, SamplingParams, new_session
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import Trajectory, TrajectoryBuilder

Pick = Callable[[Sequence[Message]], str | None]
"""The messages shown -> the reply to them; None leaves the reply to the policy."""

Guide = Callable[[EpisodeTask], Pick | None]
"""Task -> the `Pick` of its episode, when that begins; None leaves it to the policy."""


def never() -> bool:
    """Never stop."""
    return False


@dataclass(frozen=True, slots=True)
class EpisodeParams:
    """Parameters of an episode.

    Attributes:
        sampling: sampling parameters of each reply.
        max_tokens: most tokens that prompt and completion of the episode may have together.
        stopped: true to abort episodes; asked before each turn.
        guide: picks replies in the policy's place, whose tokens are no sampled ones.
    """

    sampling: SamplingParams
    max_tokens: int
    stopped: Callable[[], bool] = never
    guide: Guide | None = None

    def check_going(self) -> None:
        """Raises: `RolloutStopped`."""
        if self.stopped():
            raise RolloutStopped


class RolloutStopped(Exception):
    """Episodes were aborted between two turns, as the run was asked to stop."""


class EpisodeTooLong(Exception):
    """The next reply might not fit into the episode's token limit.

    It is a failure and not a score of 0: where the limit ends an episode, the game has not been
    lost, unless `Observation.too_long_forfeits`. A limit that many episodes hit is too low for the
    game (or the replies are too long), and the scheduler's statistics count them.
    """


class SampledConversation:
    """`Conversation` that samples its replies and keeps all tokens with a `TrajectoryBuilder`."""

    def __init__(self, sampler: Sampler, renderer: ChatRenderer, params: EpisodeParams) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._params = params
        self._session = new_session()

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        self._task = task
        self._too_long_forfeits = observation.too_long_forfeits
        own = self._params.sampling
        self._sampling_params = replace(own, stop=own.stop + observation.stop)
        self._builder = TrajectoryBuilder(
            self._renderer, task, observation.messages, observation.tools
        )
        self._pick = self._params.guide(task) if self._params.guide else None

    async def reply(self) -> str:
        """Raises: `SamplerError`, `EpisodeTooLong`, `RolloutStopped`."""
        self._params.check_going()
        prompt_ids = self._builder.prompt_ids
        _check_room(prompt_ids, self._params, self._task)
        picked = self._pick(self._builder.shown) if self._pick else None
        if picked is not None:
            return self._builder.add_picked(picked)
        sample = await self._sampler.sample(
            prompt_ids, self._sampling_params, session=self._session
        )
        return self._builder.add_reply(sample)

    def observe(self, transition: Transition) -> None:
        self._builder.add_transition(transition)

    async def close(self) -> None:
        await self._sampler.end_session(self._session)

    def trajectory(self, score: float) -> Trajectory:
        """The finished episode with its graded `score`."""
        return self._builder.build(score)

    def forfeited(self) -> Trajectory | None:
        """The episode with score 0, where it became too long by the policy's fault."""
        by_policy = self._too_long_forfeits and self._builder.replied
        return self._builder.build_forfeited() if by_policy else None


def sampled(
    sampler: Sampler, renderer: ChatRenderer, params: EpisodeParams
) -> Callable[[Environment, EpisodeTask, int], Awaitable[Trajectory]]:
    """Attempts of a `Scheduler` that are played by `play_episode`."""

    async def attempt(environment: Environment, task: EpisodeTask, number: int) -> Trajectory:
        params.check_going()
        return await play_episode(environment, task, sampler, renderer, params)

    return attempt


async def play_episode(
    environment: Environment,
    task: EpisodeTask,
    sampler: Sampler,
    renderer: ChatRenderer,
    params: EpisodeParams,
) -> Trajectory:
    """Play `task` to its end with a `SampledConversation`.

    Raises: EnvironmentFault, SamplerError, EpisodeTooLong, RolloutStopped.
    """
    conversation = SampledConversation(sampler, renderer, params)
    try:
        return conversation.trajectory(await play(environment, task, conversation))
    except EpisodeTooLong:
        forfeited = conversation.forfeited()
        if forfeited is None:
            raise
        return forfeited


def _check_room(prompt_ids: Sequence[int], params: EpisodeParams, task: EpisodeTask) -> None:
    needed = len(prompt_ids) + params.sampling.max_tokens
    if needed > params.max_tokens:
        raise EpisodeTooLong(
            f"{task} needs up to {needed} tokens ({len(prompt_ids)} held, "
            f"{params.sampling.max_tokens} for the next reply), the limit is {params.max_tokens}: "
            "raise the episode's limit or lower that of a reply"
        )
