"""Prompts, drift and continuation against tokenising the whole conversation each time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.inference.sampler import Sample
from miner.rollout.renderer import LONGEST_CACHED, ChatRenderer, DriftKind, TokenizerError
from miner.tiny_model.build import Recipe, recipe_tokenizer
from tests.builders import (
    CHATML,
    INST,
    PLAIN,
    SPACED,
    THINK_STRIPPING,
    TRIMMING,
    build_metaspace_tokenizer,
    build_sample,
    build_tokenizer,
    trl_template,
)

QUESTION = [
    {"role": "system", "content": "Play."},
    {"role": "user", "content": "Round 1\nYour move?"},
]
ANSWER = {"role": "user", "content": "Round 2\nYour move?"}
TOOL = {
    "type": "function",
    "function": {"name": "run_code", "parameters": {"type": "object", "properties": {}}},
}

TOKENIZERS = {
    "chatml": build_tokenizer(CHATML),
    "spaced": build_tokenizer(SPACED),
    "think": build_tokenizer(THINK_STRIPPING),
    "trim": build_tokenizer(TRIMMING),
    "plain": build_tokenizer(PLAIN),
    "inst": build_metaspace_tokenizer(INST),
    "qwen2_5": build_tokenizer(trl_template("qwen2_5")),
    "qwen3": build_tokenizer(trl_template("qwen3")),
}
RENDERERS = {name: ChatRenderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def whole(tokenizer, messages):
    return tuple(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def continued(name, sample):
    """The continuation after `sample`, and the whole conversation's ids before and after it."""
    renderer, tokenizer = RENDERERS[name], TOKENIZERS[name]
    reply = {"role": "assistant", "content": renderer.reply_text(sample)}
    conversation = [*QUESTION, reply, ANSWER]
    step = renderer.continue_prompt(conversation, renderer.render(QUESTION), sample)
    return step, whole(tokenizer, QUESTION), whole(tokenizer, conversation)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_prompt_is_the_templates(name):
    renderer, tokenizer = RENDERERS[name], TOKENIZERS[name]
    assert renderer.encode(renderer.render(QUESTION)) == whole(tokenizer, QUESTION)


@pytest.mark.parametrize(
    ("name", "reply", "stop", "kind"),
    [
        ("chatml", "12", True, DriftKind.CLEAN),
        ("chatml", "12", False, DriftKind.CLEAN),
        ("chatml", "", True, DriftKind.CLEAN),
        ("chatml", " 12 \n", True, DriftKind.CLEAN),
        ("chatml", "<think>low</think>3", True, DriftKind.CLEAN),
        ("think", "3", True, DriftKind.CLEAN),
        ("think", "<think>low</think>3", True, DriftKind.FORK),
        ("trim", "3", True, DriftKind.CLEAN),
        ("trim", " 3\n", True, DriftKind.FORK),
        ("inst", " 3", True, DriftKind.CLEAN),
        ("inst", " 3", False, DriftKind.CLEAN),
        ("inst", " 3 ", True, DriftKind.FORK),
        ("plain", "3", False, DriftKind.CLEAN),
        ("plain", "3", True, DriftKind.FORK),  # the template shows no end-of-turn token
        ("qwen2_5", "3", True, DriftKind.CLEAN),
        ("qwen3", "3", True, DriftKind.CLEAN),
        ("qwen3", "<think>\nlow\n</think>\n\n3", True, DriftKind.FORK),
    ],
)
def test_drift_of_canonical_replies(name, reply, stop, kind):
    tokenizer = TOKENIZERS[name]
    body = ids_of(tokenizer, ":" + reply)[len(ids_of(tokenizer, ":")) :]
    sample = build_sample([*body, tokenizer.eos_token_id] if stop else body, stop=stop)
    assert RENDERERS[name].reply_text(sample) == reply
    step, before, after = continued(name, sample)
    assert step.drift is kind
    held = () if kind is DriftKind.FORK else before + sample.token_ids
    assert held + step.new_ids == after


def test_other_token_boundaries_realign():
    """Digits sampled one by one where the vocabulary has the whole number."""
    tokenizer = TOKENIZERS["chatml"]
    pieces = [*ids_of(tokenizer, "B"), *ids_of(tokenizer, "id")]
    assert pieces != ids_of(tokenizer, "Bid")
    step, before, after = continued("chatml", build_sample([*pieces, tokenizer.eos_token_id]))
    assert step.drift is DriftKind.REALIGN
    held = (*before, *pieces, tokenizer.eos_token_id, *step.new_ids)
    assert held != after
    assert tokenizer.decode(held) == tokenizer.decode(after)


def test_reply_that_merges_with_the_generation_prompt_realigns():
    tokenizer = TOKENIZERS["spaced"]
    assert len(ids_of(tokenizer, " 1")) == 1
    step, before, after = continued(
        "spaced", build_sample([*ids_of(tokenizer, "1"), tokenizer.eos_token_id])
    )
    assert step.drift is DriftKind.REALIGN
    assert before[-1] not in after[len(before) - 1 : len(before)]


def test_end_of_turn_that_is_not_the_templates_forks():
    tokenizer = TOKENIZERS["chatml"]
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    step, _, after = continued("chatml", build_sample([*ids_of(tokenizer, "3"), other]))
    assert (step.drift, step.new_ids) == (DriftKind.FORK, after)


def test_special_token_inside_a_reply_is_not_shown_and_forks():
    tokenizer = TOKENIZERS["chatml"]
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    sample = build_sample([start, *ids_of(tokenizer, "3"), tokenizer.eos_token_id])
    assert RENDERERS["chatml"].reply_text(sample) == "3"
    step, _, after = continued("chatml", sample)
    assert (step.drift, step.new_ids) == (DriftKind.FORK, after)


@st.composite
def samples(draw, name):
    tokenizer = TOKENIZERS[name]
    body = draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=6))
    body = [i for i in body if i != tokenizer.eos_token_id]
    stop = draw(st.booleans()) or not body
    return build_sample([*body, tokenizer.eos_token_id] if stop else body, stop=stop)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=75)
@given(data=st.data())
def test_any_reply_is_continued_as_the_whole_conversation_says(name, data):
    sample = data.draw(samples(name))
    tokenizer = TOKENIZERS[name]
    step, before, after = continued(name, sample)
    held = before + sample.token_ids
    assert step.text == tokenizer.decode(after) or name == "inst"
    if step.drift is DriftKind.FORK:
        assert step.new_ids == after
        assert after[: len(held)] != held
    else:
        assert tokenizer.decode(held + step.new_ids) == tokenizer.decode(after)
        assert (step.drift is DriftKind.CLEAN) == (held + step.new_ids == after)


def swallow_spaces(tokenizer):
    """`<|im_end|>` takes the newline after it: pieces cannot be tokenised alone."""
    end = type(tokenizer.added_tokens_decoder[1])("<|im_end|>", rstrip=True)
    tokenizer.add_special_tokens({"eos_token": end})


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (lambda t: setattr(t, "split_special_tokens", True), DriftKind.REALIGN, True),
        (swallow_spaces, DriftKind.CLEAN, False),  # the others still separate
        (lambda t: t.add_tokens(["\n<|im_start|>"], special_tokens=True), DriftKind.CLEAN, True),
    ],
    ids=["split", "swallow spaces", "one within another"],
)
def test_shortcut_is_not_taken_where_special_tokens_do_not_separate(spoil, kind, said, caplog):
    tokenizer = build_tokenizer(CHATML)
    spoil(tokenizer)
    renderer = ChatRenderer(tokenizer)
    assert ("special tokens do not separate" in caplog.text) == said
    sample = build_sample([*ids_of(tokenizer, "3"), tokenizer.eos_token_id])
    conversation = [*QUESTION, {"role": "assistant", "content": "3"}, ANSWER]
    step = renderer.continue_prompt(conversation, renderer.render(QUESTION), sample)
    held = whole(tokenizer, QUESTION) + sample.token_ids
    assert step.drift is kind
    after = whole(tokenizer, conversation)
    assert tokenizer.decode(held + step.new_ids) == tokenizer.decode(after)
    assert (held + step.new_ids == after) == (kind is DriftKind.CLEAN)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: setattr(t, "chat_template", None), "no chat template"),
        (lambda t: setattr(t, "eos_token", None), "no eos token"),
        (
            lambda t: setattr(t, "chat_template", "{{ raise_exception('no system role') }}"),
            "does not render.*no system role",
        ),
    ],
)
def test_tokenizers_that_cannot_converse_are_refused(spoil, message):
    tokenizer = build_tokenizer()
    spoil(tokenizer)
    tokenizer.name_or_path = "odd-base"
    with pytest.raises(TokenizerError, match=f"'odd-base'.*{message}"):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize("name", ["chatml", "qwen3", "inst"])
def test_a_reply_that_is_last_is_gone_on_with(name):
    renderer = RENDERERS[name]
    begun = {"role": "assistant", "content": "<code>1"}
    for tools in ((), (TOOL,)):
        expected = renderer.render(QUESTION, tools) + "<code>1"
        assert renderer.render([*QUESTION, begun], tools) == expected
    assert ("run_code" in expected) == (name == "qwen3")


@pytest.mark.parametrize("template", [CHATML, SPACED, PLAIN])
def test_a_reply_is_encoded_as_it_is_in_the_chat(template):
    renderer = ChatRenderer(build_tokenizer(template))
    ids = renderer.encode_reply("12 -> [P0]Bid: 13")
    assert ids[-1] == renderer.eos_token_id
    sample = Sample(ids, (0.0,) * len(ids), "stop")
    assert renderer.reply_text(sample) == "12 -> [P0]Bid: 13"


def test_an_id_of_the_tiny_models_options_is_one_token_and_the_end():
    """Behind a line's end its digits would be two, which the model never samples."""
    renderer = ChatRenderer(recipe_tokenizer(Recipe()))
    for option in range(20):
        assert len(renderer.encode_reply(str(option))) == 2


def test_a_tokenizer_that_begins_words_with_a_space_gets_none_before_a_reply():
    renderer = ChatRenderer(build_metaspace_tokenizer())
    (*body, end) = renderer.encode_reply("9")
    assert end == renderer.eos_token_id
    assert renderer.encode("seed\n9")[-len(body) :] == tuple(body)


def test_a_reply_that_ended_on_an_ordinary_token_does_not_go_on():
    """An end of turn need not be one of the tokenizer's special tokens."""
    renderer, ids = RENDERERS["chatml"], ids_of(TOKENIZERS["chatml"], "<code>1")
    ended, cut = (
        renderer.continue_reply(renderer.render(QUESTION), build_sample(ids, stop=stop), "=1")
        for stop in (True, False)
    )
    assert (ended.drift, cut.drift) == (DriftKind.FORK, DriftKind.CLEAN)
    assert ended.text == renderer.render(QUESTION) + "<code>=1"


def test_texts_without_bound_are_not_remembered():
    renderer = ChatRenderer(TOKENIZERS["chatml"])
    held = renderer._encode.cache_info().currsize
    text = "x" * (LONGEST_CACHED + 1)
    assert renderer.encode(text) == tuple(ids_of(TOKENIZERS["chatml"], text))
    assert renderer._encode.cache_info().currsize == held
    renderer.encode(text[1:])
    assert renderer._encode.cache_info().currsize == held + 1
