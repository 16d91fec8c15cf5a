"""A chat that a policy fills scores 0: lost, it would leave its group and the held-out mean."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from miner.environments import EnvironmentSource, EpisodeTask
from miner.environments.own import Step, TextEnvironment
from miner.environments.own.source import OwnSource
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.runner import evaluate
from miner.inference.sampler import SamplingParams
from miner.rollout.episode import EpisodeParams, EpisodeTooLong, play_episode
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import Trajectory
from tests.builders import ScriptedSampler, build_sample, build_tokenizer
from tests.environments.openenv.server_double import Double, observation, serving, source_of

RENDERER = ChatRenderer(build_tokenizer())
SAMPLER = ScriptedSampler(lambda _: build_sample([*RENDERER.encode("0"), RENDERER.eos_token_id]))
SAMPLING = SamplingParams(max_tokens=8)


class Endless(TextEnvironment):
    """Asks once more, whatever is replied."""

    def reset(self, seed: int) -> str:
        return "go"

    def step(self, reply: str) -> Step:
        return Step("and?")


@asynccontextmanager
async def own() -> AsyncIterator[EnvironmentSource]:
    source = OwnSource(Endless)
    yield source
    await source.close()


@asynccontextmanager
async def openenv() -> AsyncIterator[EnvironmentSource]:
    double = Double(lambda kind, data, turn: observation("go", reward=0.1))
    async with serving(double), source_of(double) as source:
        yield source


@pytest.mark.parametrize("opened", [own, openenv])
async def test_a_chat_that_a_policy_fills_scores_0_and_a_prompt_that_does_not_fit_is_none(
    opened: Callable[[], AbstractAsyncContextManager[EnvironmentSource]],
) -> None:
    async with opened() as source:
        task = EpisodeTask(source.name, 1, 1, "none")

        async def played(most: int) -> Trajectory:
            environment, params = source.open(), EpisodeParams(SAMPLING, max_tokens=most)
            try:
                return await play_episode(environment, task, SAMPLER, RENDERER, params)
            finally:
                await environment.close()

        first = len((await played(4000)).rows[0].prompt_ids) + SAMPLING.max_tokens
        full = await played(first)
        assert (full.score, [turn.valid for turn in full.turns]) == (0.0, [False])
        with pytest.raises(EpisodeTooLong):
            await played(first - 1)
        for most, ends in ((first, (0.0, "invalid_replies")), (first - 1, (None, "too_long"))):
            policy = SamplerPolicy("m", SAMPLER, RENDERER, SAMPLING, most)
            [episode] = (await evaluate(policy, source, [task])).episodes
            assert (episode.score, episode.failure) == ends
