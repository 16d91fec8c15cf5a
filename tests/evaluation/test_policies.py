"""Baselines and models as policies: they see the chat, and nothing but the chat."""

from collections.abc import Sequence

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import EpisodeTask, Observation
from miner.environments.builtin import BuiltinSource
from miner.evaluation.grader import episode_list
from miner.evaluation.policies import BaselinePolicy, PolicyError, SamplerPolicy
from miner.evaluation.runner import evaluate
from miner.inference.sampler import Sample, SamplerError, SamplingParams
from miner.rollout.renderer import ChatRenderer
from tests.builders import build_tokenizer

TASK = EpisodeTask("goofspiel", 0, 0)
CHAT = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your move?"}]


@pytest.mark.parametrize("name", ["random", "match", "highest", "lowest"])
async def test_a_baseline_always_finds_a_legal_action_and_repeats_itself(name: str) -> None:
    tasks = episode_list(30, base_seed=1)
    first = await evaluate(BaselinePolicy(name), BuiltinSource(), tasks)
    second = await evaluate(BaselinePolicy(name), BuiltinSource(), tasks)
    assert first.parse_failures == first.illegal_replies == 0
    assert [e.replies for e in first.episodes] == [e.replies for e in second.episodes]


async def test_baselines_bid_as_they_are_called() -> None:
    environment = BuiltinSource().open()
    chat = await environment.reset(TASK)
    assert "Current point card: 5" in chat.messages[-1]["content"]
    replies = {
        name: await BaselinePolicy(name).conversation(TASK).reply(chat)
        for name in ("match", "highest", "lowest")
    }
    assert replies == {"match": "4", "highest": "7", "lowest": "0"}


async def test_random_plays_games_without_cards() -> None:
    tasks = episode_list(10, environment="leduc_poker")
    result = await evaluate(BaselinePolicy("random"), BuiltinSource(), tasks)
    assert result.failures() == {}
    assert result.by_deck_size == {}


def test_what_a_baseline_cannot_play_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'best'.*random, match"):
        BaselinePolicy("best")
    with pytest.raises(ConfigurationError, match=r"goofspiel only.*leduc_poker"):
        BaselinePolicy("match").conversation(EpisodeTask("leduc_poker", 200_000_000, 0))


@pytest.mark.parametrize("name", ["match", "random"])
async def test_a_chat_without_a_game_is_the_policys_failure(name: str) -> None:
    chat = Observation(({"role": "user", "content": "Hi"},))
    with pytest.raises(PolicyError):
        await BaselinePolicy(name).conversation(TASK).reply(chat)


class ScriptedSampler:
    """Answers with the ids of `text`; keeps prompts by session."""

    def __init__(self, ids: Sequence[int], *, broken: bool = False) -> None:
        self._ids = tuple(ids)
        self._broken = broken
        self.prompts: dict[int | None, list[list[int]]] = {}
        self.params: list[SamplingParams] = []
        self.ended: list[int] = []

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        if self._broken:
            raise SamplerError("the prompt leaves no room")
        self.prompts.setdefault(session, []).append(list(prompt_ids))
        self.params.append(params)
        return Sample(self._ids, (-0.1,) * len(self._ids), "stop")

    async def end_session(self, session: int) -> None:
        self.ended.append(session)


async def test_a_model_is_shown_the_whole_chat_through_its_template_each_turn() -> None:
    tokenizer = build_tokenizer()
    renderer = ChatRenderer(tokenizer)
    sampler = ScriptedSampler([*renderer.encode("12"), renderer.eos_token_id])
    policy = SamplerPolicy("tiny", sampler, renderer, SamplingParams(5, temperature=0.0))
    one, other = policy.conversation(TASK), policy.conversation(TASK)
    assert await one.reply(Observation(CHAT)) == "12"
    longer = [*CHAT, {"role": "assistant", "content": "12"}, {"role": "user", "content": "Next?"}]
    await one.reply(Observation(longer))
    await other.reply(Observation(CHAT))
    await one.close()
    (first, second), (third,) = sampler.prompts.values()
    expected = [
        tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for chat in (CHAT, longer)
    ]
    assert [first, second] == expected
    assert third == first
    assert sampler.ended == [next(iter(sampler.prompts))]
    assert (policy.temperature, sampler.params[0].max_tokens) == (0.0, 5)


async def test_a_sampler_that_fails_is_the_policys_failure() -> None:
    renderer = ChatRenderer(build_tokenizer())
    policy = SamplerPolicy("tiny", ScriptedSampler([], broken=True), renderer, SamplingParams(5))
    with pytest.raises(PolicyError, match="leaves no room"):
        await policy.conversation(TASK).reply(Observation(CHAT))
