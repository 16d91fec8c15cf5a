"""Episodes are token-exact: rows hold exactly what was sent to and received from the sampler."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.environments import Observation, ProtocolError, Transition
from miner.inference.sampler import Sample, SamplerError, SamplingParams
from miner.rollout.episode import EpisodeParams, EpisodeTooLong, play_episode
from miner.rollout.renderer import ChatRenderer, DriftKind
from miner.rollout.trajectory import TrajectoryBuilder
from tests.builders import (
    CHATML,
    PLAIN,
    THINK_STRIPPING,
    TRIMMING,
    CountingEnvironment,
    ScriptedSampler,
    build_metaspace_tokenizer,
    build_sample,
    build_task,
    build_tokenizer,
    trl_template,
)

PARAMS = EpisodeParams(SamplingParams(max_tokens=16), max_tokens=4000)
TOKENIZERS = {
    "chatml": build_tokenizer(CHATML),
    "think": build_tokenizer(THINK_STRIPPING),
    "trim": build_tokenizer(TRIMMING),
    "plain": build_tokenizer(PLAIN),
    "inst": build_metaspace_tokenizer(),
    "tools": build_tokenizer(trl_template("qwen2_5")),
}
RENDERERS = {name: ChatRenderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def text_sample(name, text, *, stop=True):
    """A canonically tokenised reply."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = [*ids, tokenizer.eos_token_id] if stop else ids
    return build_sample(ids, stop=stop)


def play(name, replies, *, rounds=None, environment=None, params=PARAMS):
    script = iter(replies)
    sampler = ScriptedSampler(reply=lambda _: next(script))
    environment = environment or CountingEnvironment(rounds or len(replies))
    episode = play_episode(environment, build_task(), sampler, RENDERERS[name], params)
    return asyncio.run(episode), sampler, environment


@st.composite
def games(draw):
    name = draw(st.sampled_from(sorted(TOKENIZERS)))
    tokenizer = TOKENIZERS[name]
    token = st.one_of(
        st.integers(0, len(tokenizer) - 1),
        st.sampled_from(tokenizer("12 <think>3</think>\n", add_special_tokens=False)["input_ids"]),
    )
    replies = []
    for _ in range(draw(st.integers(1, 4))):
        body = draw(st.lists(token.filter(lambda i: i != tokenizer.eos_token_id), max_size=5))
        stop = draw(st.booleans()) or not body
        replies.append(build_sample([*body, tokenizer.eos_token_id] if stop else body, stop=stop))
    ways = st.sampled_from(["in the chat", "in a fresh chat", "in the reply"])
    return name, replies, [draw(ways) for _ in replies]


@settings(max_examples=100)
@given(game=games())
def test_rows_are_exactly_what_crossed_the_sampler(game):
    name, replies, goes_on = game
    environment = CountingEnvironment(len(replies), goes_on=goes_on)
    trajectory, sampler, _ = play(name, replies, environment=environment)
    exchanges = sampler.only_session
    assert [sample for _, sample in exchanges] == replies
    assert [turn.reply for turn in trajectory.turns] == environment.replies

    row, position = iter(trajectory.rows), None
    current = None
    for turn, (prompt, sample) in enumerate(exchanges):
        forked = turn > 0 and trajectory.turns[turn].drift is DriftKind.FORK
        if current is None or forked or goes_on[turn - 1] == "in a fresh chat":
            current = next(row)
            assert prompt == current.prompt_ids
            position = 0
        ids = current.prompt_ids + current.completion_ids
        start = len(prompt) - len(current.prompt_ids)
        end = start + len(sample.token_ids)
        assert ids[: len(prompt)] == prompt
        assert current.completion_ids[start:end] == sample.token_ids
        assert current.logprobs[start:end] == sample.logprobs
        assert set(current.turn_ids[start:end]) == {turn}
        assert set(current.turn_ids[position:start]) <= {-1}
        position = end
    assert next(row, None) is None
    check_row_form(trajectory, TOKENIZERS[name].eos_token_id)


def check_row_form(trajectory, eos_token_id):
    sampled = 0
    for row in trajectory.rows:
        size = len(row.completion_ids)
        assert size == len(row.logprobs) == len(row.loss_mask) == len(row.turn_ids)
        assert row.loss_mask == tuple(int(turn >= 0) for turn in row.turn_ids)
        unsampled = [p for p, mask in zip(row.logprobs, row.loss_mask, strict=True) if not mask]
        assert set(unsampled) <= {0.0}
        assert row.completion_ids[-1] == eos_token_id
        sampled += sum(row.loss_mask)
    assert sampled == trajectory.sampled_tokens
    assert sampled == sum(turn.sampled_tokens for turn in trajectory.turns)


def test_clean_episode_is_one_row_equal_to_the_tokenised_conversation():
    trajectory, sampler, _ = play("chatml", [text_sample("chatml", t) for t in ("1", "2", "x")])
    tokenizer = TOKENIZERS["chatml"]
    (row,) = trajectory.rows
    conversation = []
    for turn in trajectory.turns:
        conversation += [*turn.messages, {"role": "assistant", "content": turn.reply}]
    whole = tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False)
    ids = [*row.prompt_ids, *row.completion_ids]
    assert whole[: len(ids)] == ids
    assert tokenizer.decode(whole[len(ids) :]) == "\n"
    assert [t.drift for t in trajectory.turns] == [DriftKind.CLEAN] * 3
    assert [t.action for t in trajectory.turns] == [1, 2, None]
    assert [t.valid for t in trajectory.turns] == [True, True, False]
    assert trajectory.score == pytest.approx(2 / 3)
    assert sampler.ended == list(sampler.exchanges)


def test_a_fresh_chat_is_a_row_of_its_messages_alone():
    replies = [text_sample("chatml", t) for t in ("1", "2", "3")]
    environment = CountingEnvironment(3, goes_on=["in a fresh chat", "in the chat"])
    trajectory, _, _ = play("chatml", replies, environment=environment)
    first, second = trajectory.rows
    tokenizer = TOKENIZERS["chatml"]
    shown = tokenizer.decode(second.prompt_ids)
    assert shown.count("<|im_start|>") == 3  # system, user, and the reply's beginning
    assert "Round 2" in shown
    assert "Round 1" not in shown
    assert first.completion_ids == replies[0].token_ids
    assert set(second.turn_ids) == {-1, 1, 2}
    assert [turn.drift for turn in trajectory.turns] == [DriftKind.CLEAN] * 3


def test_what_the_environment_appends_continues_in_the_reply_and_is_not_trained():
    """A reply may look as the environment's text does: the mask is by who said it."""
    said = ["<code>1</code>", "<output>1</output> 2", "3"]
    replies = [text_sample("chatml", said[0], stop=False), text_sample("chatml", said[1])]
    replies.append(text_sample("chatml", said[2]))
    environment = CountingEnvironment(3, goes_on=["in the reply"])
    trajectory, sampler, _ = play("chatml", replies, environment=environment)
    (row,) = trajectory.rows
    tokenizer = TOKENIZERS["chatml"]
    second_prompt, _ = sampler.only_session[1]
    assert tokenizer.decode(second_prompt).endswith("assistant\n<code>1</code><output>1</output>")
    third_prompt, _ = sampler.only_session[2]
    chat = [
        *trajectory.turns[0].messages,
        {"role": "assistant", "content": "<code>1</code><output>1</output><output>1</output> 2"},
        *trajectory.turns[2].messages,
    ]
    expected = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(third_prompt) == expected
    trained = [i for i, mask in zip(row.completion_ids, row.loss_mask, strict=True) if mask]
    assert trained == [i for sample in replies for i in sample.token_ids]
    assert trajectory.turns[1].messages == ({"role": "assistant", "content": "<output>1</output>"},)


def test_a_reply_that_has_ended_continues_in_a_new_row():
    replies = [text_sample("chatml", "<code>1</code>"), text_sample("chatml", "2")]
    environment = CountingEnvironment(2, goes_on=["in the reply"])
    trajectory, _, _ = play("chatml", replies, environment=environment)
    first, second = trajectory.rows
    assert first.completion_ids == replies[0].token_ids
    shown = TOKENIZERS["chatml"].decode(second.prompt_ids)
    assert shown.endswith("assistant\n<code>1</code><output>1</output>")
    assert trajectory.turns[1].drift is DriftKind.FORK


def test_cut_replies_get_their_end_of_turn_without_loss():
    replies = [text_sample("chatml", t, stop=False) for t in ("1", "22")]
    trajectory, _, _ = play("chatml", replies)
    (row,) = trajectory.rows
    eos = TOKENIZERS["chatml"].eos_token_id
    ends = [i for i, token in enumerate(row.completion_ids) if token == eos]
    assert ends[0] == len(replies[0].token_ids)
    assert ends[-1] == len(row.completion_ids) - 1
    assert all(row.loss_mask[i] == 0 for i in ends)
    assert [turn.finish_reason for turn in trajectory.turns] == ["length", "length"]


def test_think_stripping_template_gives_a_row_per_turn():
    thoughts = [text_sample("think", f"<think>{t}</think>{t}") for t in ("1", "2", "3")]
    trajectory, _, _ = play("think", thoughts)
    assert [turn.drift for turn in trajectory.turns] == [
        DriftKind.CLEAN,
        DriftKind.FORK,
        DriftKind.FORK,
    ]
    assert [row.completion_ids for row in trajectory.rows] == [t.token_ids for t in thoughts]
    assert [set(row.turn_ids) for row in trajectory.rows] == [{0}, {1}, {2}]
    prompts = [TOKENIZERS["think"].decode(row.prompt_ids) for row in trajectory.rows]
    assert "think" not in "".join(prompts)
    assert "assistant\n1<|im_end|>" in prompts[2]


class Tooled(CountingEnvironment):
    """Offers a tool, also in a fresh chat, and shortens what the history shows of a reply."""

    tools = ({"type": "function", "function": {"name": "run_code", "parameters": {}}},)

    async def reset(self, task):
        shown = await super().reset(task)
        return replace(shown, tools=self.tools, stop=("</code>",))

    async def step(self, text):
        went = await super().step(text)
        recorded = None if went.done else "short"
        return replace(went, recorded=recorded, tools=self.tools if went.fresh else ())


def test_tools_are_in_every_chat_and_a_call_keeps_its_special_tokens():
    tokenizer = TOKENIZERS["tools"]
    call = [tokenizer.convert_tokens_to_ids("<|endoftext|>"), *text_sample("tools", "1").token_ids]
    replies = [build_sample(call), text_sample("tools", "2"), text_sample("tools", "short")]
    replies.append(text_sample("tools", "4"))
    environment = Tooled(4, goes_on=["in the chat", "in a fresh chat"])
    trajectory, sampler, _ = play("tools", replies, environment=environment)
    assert environment.replies == ["<|endoftext|>1", "2", "short", "4"]
    prompts = [tokenizer.decode(prompt) for prompt, _ in sampler.only_session]
    assert [prompt.count("run_code") for prompt in prompts] == [1] * 4
    assert "assistant\nshort<|im_end|>" in prompts[1]
    kinds = [turn.drift for turn in trajectory.turns]
    assert kinds == [DriftKind.CLEAN, DriftKind.FORK, DriftKind.CLEAN, DriftKind.CLEAN]
    assert len(trajectory.rows) == 3


def test_replies_end_where_the_run_or_the_environment_says():
    asked = []

    class Asked(ScriptedSampler):
        async def sample(self, prompt_ids, params, *, session=None):
            asked.append(params)
            return await super().sample(prompt_ids, params, session=session)

    sampling = SamplingParams(max_tokens=16, stop=("!",))
    sampler = Asked(reply=lambda _: text_sample("chatml", "1"))
    params = EpisodeParams(sampling, max_tokens=4000)
    episode = play_episode(Tooled(2), build_task(), sampler, RENDERERS["chatml"], params)
    asyncio.run(episode)
    assert asked == [replace(sampling, stop=("!", "</code>"))] * 2


def test_a_transition_needs_the_reply_that_it_answers():
    """Once, and after each reply anew: tokens of no reply would be trained."""
    builder = TrajectoryBuilder(
        RENDERERS["chatml"], build_task(), [{"role": "user", "content": "Go"}]
    )
    went_on = Transition(({"role": "user", "content": "Next"},), 0.0, False)
    with pytest.raises(RuntimeError, match="call add_reply first"):
        builder.add_transition(went_on)
    builder.add_reply(text_sample("chatml", "1"))
    builder.add_transition(went_on)
    with pytest.raises(RuntimeError, match="call add_reply first"):
        builder.add_transition(went_on)


@pytest.mark.parametrize(
    "sample", [Sample((), (), "length"), Sample((5, 1), (-0.1,), "stop")], ids=["empty", "short"]
)
def test_sample_that_is_not_a_reply_is_refused(sample):
    with pytest.raises(SamplerError, match="is no reply"):
        play("chatml", [sample])


def test_episode_that_might_not_fit_is_too_long_and_no_score():
    first = len(play("chatml", [text_sample("chatml", "1")])[0].rows[0].prompt_ids)
    fits = EpisodeParams(SamplingParams(max_tokens=16), max_tokens=first + 16)
    play("chatml", [text_sample("chatml", "1")], params=fits)
    with pytest.raises(EpisodeTooLong, match=f"limit is {first + 16}"):
        play("chatml", [text_sample("chatml", "1")] * 2, params=fits)


class OneTransition(CountingEnvironment):
    """Answers every reply with a fixed transition."""

    def __init__(self, transition, messages=({"role": "user", "content": "?"},)):
        super().__init__()
        self.transition, self.messages = transition, messages

    async def reset(self, task):
        return Observation(self.messages)

    async def step(self, text):
        return self.transition


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (OneTransition(Transition((), 0.0, done=True)), "score None"),
        (OneTransition(Transition((), 0.0, done=True, score=1.5)), "score 1.5"),
        (OneTransition(Transition((), 0.0, done=True, score=float("nan"))), "score nan"),
        (OneTransition(Transition((), 0.0, done=False)), "no messages"),
        (OneTransition(Transition((), 0.0, done=False), messages=()), "no messages"),
    ],
)
def test_environments_that_break_the_contract_are_protocol_errors(environment, message):
    with pytest.raises(ProtocolError, match=message) as caught:
        play("chatml", itertools.repeat(text_sample("chatml", "1")), environment=environment)
    assert caught.value.server == "counting"


def test_a_picked_reply_is_played_and_kept_and_has_no_loss():
    shown = []

    def pick(messages):
        shown.append(messages)
        return "7" if len(shown) == 1 else None

    replies = [text_sample("chatml", "7"), text_sample("chatml", "9")]
    plain, _, _ = play("chatml", replies)
    params = replace(PARAMS, guide=lambda task: pick)
    episode, sampler, environment = play("chatml", replies[1:], rounds=2, params=params)
    assert shown == [turn.messages for turn in episode.turns]
    assert environment.replies == ["7", "9"]
    assert len(sampler.params) == 1
    assert [turn.sampled_tokens for turn in episode.turns] == [0, plain.turns[1].sampled_tokens]
    (row,), (sampled,) = episode.rows, plain.rows
    assert row.completion_ids == sampled.completion_ids
    assert row.turn_ids == sampled.turn_ids
    assert row.loss_mask == tuple(int(turn == 1) for turn in row.turn_ids)


def test_a_guide_that_leaves_an_episode_to_the_policy_changes_nothing():
    replies = [text_sample("chatml", "7"), text_sample("chatml", "9")]
    own, _, _ = play("chatml", replies)
    asked, _, _ = play("chatml", replies, params=replace(PARAMS, guide=lambda task: None))
    assert own == asked
