"""Baselines and models as policies: they see only the chat, and score what reports show."""

import numpy as np
import pytest

from miner.config.contract import DUEL_REPLY_TOKENS
from miner.config.errors import ConfigurationError
from miner.config.evaluation_run import WHOLE_REPLY_TOKENS, EvaluationRun
from miner.config.settings import Channel, EnvironmentSettings
from miner.environments import EpisodeTask, Observation
from miner.environments.base import Message, Tool
from miner.environments.builtin import BuiltinSource
from miner.evaluation.grader import episode_list
from miner.evaluation.policies import BaselinePolicy, PolicyError, PromptTooLongError, SamplerPolicy
from miner.evaluation.runner import Rules, evaluate
from miner.games import GAMES
from miner.inference.sampler import EngineLostError, Sample, SamplerError, SamplingParams
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import RetryParams
from tests.builders import ScriptedSampler, build_sample, build_tokenizer, trl_template
from tests.evaluation.scripted import ScriptedSource, task, won

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
        name: await BaselinePolicy(name).conversation(TASK).answer(chat)
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
        await BaselinePolicy(name).conversation(TASK).answer(chat)


async def test_a_model_is_shown_the_whole_chat_through_its_template_each_turn() -> None:
    tokenizer = build_tokenizer()
    renderer = ChatRenderer(tokenizer)
    said = build_sample([*renderer.encode("12"), renderer.eos_token_id])
    sampler = ScriptedSampler(lambda _: said)
    policy = SamplerPolicy("tiny", sampler, renderer, SamplingParams(5, temperature=0.0))
    one, other = policy.conversation(TASK), policy.conversation(TASK)
    assert await one.answer(Observation(CHAT)) == "12"
    longer = [*CHAT, {"role": "assistant", "content": "12"}, {"role": "user", "content": "Next?"}]
    await one.answer(Observation(longer))
    await other.answer(Observation(CHAT))
    await one.close()
    (first, second), (third,) = (
        [list(prompt) for prompt, _ in exchanges] for exchanges in sampler.exchanges.values()
    )
    expected = [
        tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for chat in (CHAT, longer)
    ]
    assert [first, second] == expected
    assert third == first
    assert sampler.ended == [next(iter(sampler.exchanges))]
    assert (policy.temperature, sampler.params[0].max_tokens) == (0.0, 5)


@pytest.mark.parametrize("stop", [True, False])
async def test_a_reply_that_was_cut_off_is_recorded_so(stop: bool) -> None:
    renderer = ChatRenderer(build_tokenizer())
    sampler = ScriptedSampler(lambda _: build_sample([1], stop=stop))
    policy = SamplerPolicy("tiny", sampler, renderer, SamplingParams(1))
    result = await evaluate(policy, ScriptedSource({7: [[won()]]}), [task(7)])
    [reply] = result.episodes[0].replies
    assert reply.cut is not stop


async def test_a_sampler_that_fails_is_the_policys_failure() -> None:
    def broken(_: object) -> Sample:
        raise SamplerError("the prompt leaves no room")

    renderer = ChatRenderer(build_tokenizer())
    policy = SamplerPolicy("tiny", ScriptedSampler(broken), renderer, SamplingParams(5))
    with pytest.raises(PolicyError, match="leaves no room"):
        await policy.conversation(TASK).answer(Observation(CHAT))


async def test_an_engine_that_is_lost_says_nothing_of_the_model() -> None:
    left: list[Exception | None] = [EngineLostError("away"), None]

    def comes_back(_: object) -> Sample:
        if error := left.pop(0):
            raise error
        return build_sample([1])

    policy = SamplerPolicy(
        "tiny", ScriptedSampler(comes_back), ChatRenderer(build_tokenizer()), SamplingParams(5)
    )
    rules = Rules(retry=RetryParams(pause_seconds=0, episode_seconds=None))
    result = await evaluate(policy, ScriptedSource({7: [[won()]] * 2}), [task(7)], rules)
    [record] = result.episodes
    assert (record.score, record.failure, record.tries) == (1.0, None, 2)


async def test_a_prompt_that_the_engine_has_no_room_for_excludes_the_episode() -> None:
    """It is no reply that lost the game: served with its whole context, the model would answer."""
    tokenizer = build_tokenizer()
    renderer = ChatRenderer(tokenizer)
    said = build_sample([*renderer.encode("0"), renderer.eos_token_id])
    sampler = ScriptedSampler(lambda _: said)
    needed = len(renderer.encode(renderer.render(CHAT))) + 5
    params = SamplingParams(5)
    policy = SamplerPolicy("tiny", sampler, renderer, params, most_tokens=needed)
    assert await policy.conversation(TASK).answer(Observation(CHAT)) == "0"
    short = SamplerPolicy("tiny", sampler, renderer, params, most_tokens=needed - 1)
    with pytest.raises(PromptTooLongError, match=r"raise rollout\.max_episode_tokens"):
        await short.conversation(TASK).answer(Observation(CHAT))
    result = await evaluate(short, BuiltinSource(), [TASK])
    [episode] = result.episodes
    assert (episode.score, episode.failure, episode.tries) == (None, "too_long", 1)
    assert result.score is None


@pytest.mark.parametrize(("room", "given"), [(256, 256), (40, 40), (16, 16), (15, None)])
async def test_a_long_reply_ends_where_the_room_is_used_up(room: int, given: int | None) -> None:
    """So a base that answers in sentences loses no game that would fit with short replies."""
    renderer = ChatRenderer(build_tokenizer())
    said = build_sample([*renderer.encode("0"), renderer.eos_token_id])
    sampler = ScriptedSampler(lambda _: said)
    most = len(renderer.encode(renderer.render(CHAT))) + room
    params = SamplingParams(256, temperature=0.0)
    policy = SamplerPolicy("base", sampler, renderer, params, most, least_reply=16)
    reply = policy.conversation(TASK).answer(Observation(CHAT))
    if given is None:
        with pytest.raises(PromptTooLongError, match="reply of up to 16 exceed"):
            await reply
    else:
        assert await reply == "0"
    assert [asked.max_tokens for asked in sampler.params] == ([] if given is None else [given])


def simulated(name: str, cards: int, games: int) -> float:
    """Mean score of `random` or `match` against bids at random, prizes in random order."""
    rng = np.random.default_rng(1)
    prizes, theirs, random = (
        rng.permuted(np.tile(np.arange(1, cards + 1), (games, 1)), axis=1) for _ in range(3)
    )
    lead = (prizes * np.sign((random if name == "random" else prizes) - theirs)).sum(1)
    return float(((np.sign(lead) + 1) / 2).mean())


@pytest.mark.parametrize("cards", [8, 16])
def test_baselines_score_what_the_reports_show(cards: int) -> None:
    for name, shown in zip(("random", "match"), GAMES["goofspiel"].references, strict=False):
        score = simulated(name, cards, 40_000)
        assert score == pytest.approx(shown.by_deck_size[cards], abs=0.01), "four standard errors"


async def test_a_model_is_shown_the_tools_and_its_call_keeps_its_marks() -> None:
    tokenizer = build_tokenizer(trl_template("qwen2_5"))
    renderer = ChatRenderer(tokenizer)
    mark = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    said = build_sample([mark, *renderer.encode("12"), renderer.eos_token_id])
    sampler = ScriptedSampler(lambda _: said)
    policy = SamplerPolicy("tiny", sampler, renderer, SamplingParams(5))
    tool: Tool = {"type": "function", "function": {"name": "game_action", "parameters": {}}}
    chat: Message = {"role": "user", "content": "Your turn."}
    replies = [
        await policy.conversation(TASK).answer(Observation((chat,), tools=tools))
        for tools in ((tool,), ())
    ]
    assert replies == ["<|endoftext|>12", "12"]
    shown = [tokenizer.decode(list(p)) for each in sampler.exchanges.values() for p, _ in each]
    assert ["game_action" in text for text in shown] == [True, False]


@pytest.mark.parametrize(
    ("channel", "given", "longest"),
    [("duel", None, DUEL_REPLY_TOKENS), ("builtin", None, WHOLE_REPLY_TOKENS), ("duel", 8, 8)],
)
def test_replies_are_as_long_as_graded(channel: Channel, given: int | None, longest: int) -> None:
    environment = EnvironmentSettings(channel=channel)
    run = EvaluationRun(policy="random", environment=environment, max_reply_tokens=given)
    assert run.reply_tokens == longest
