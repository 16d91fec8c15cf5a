"""Fixes of a base model's chat template: none, or one change with its reason."""

import re

import pytest
from jinja2 import TemplateError
from trl.chat_template_utils import get_training_chat_template

from miner.rollout.chat_template import (
    CONVERSATION,
    DATE,
    FIRST_TURN,
    FIXED_DATE,
    FOLDED_SYSTEM,
    PLAIN,
    THINKING_OFF,
    ChatTemplateError,
    FixedTemplate,
    fixed_template,
)
from tests.builders import CHATML, build_tokenizer, trl_template

FOLDED = "the system text opens the first user turn"
THINKING = CHATML + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
DATED = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }}" + CHATML
)
KEPT = "replies keep their form in the history"
USERS_ONLY = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
DEAF = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
LAST_MARKED = CHATML.replace("+ m['role']", "+ m['role'] + ('!' if loop.last else '')")
"""A past that is rewritten in every turn, by a template that TRL does not know."""


def mended(template):
    return fixed_template(build_tokenizer(template))


def shown(template, messages, **names):
    return build_tokenizer().apply_chat_template(
        [dict(message) for message in messages],
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
        **names,
    )


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        CHATML + "{# enable_thinking #}",  # named, and nothing hangs on it
        CHATML + "{# strftime_now #}",
        CHATML + "{# date_string #}",
        CHATML + "{% if my_enable_thinking is not defined %}{% endif %}",
        LAST_MARKED,  # a row for every turn, but it can be played
        "{% if messages|length < 2 %}{{ raise_exception('alone') }}{% endif %}{# enable_thinking #}"
        + CHATML,
        # TRL's search for a better variant shows it a call of a tool, which it cannot take
        "{% for m in messages if m.tool_calls %}{{ m.tool_calls + 'a' }}{% endfor %}" + LAST_MARKED,
    ],
)
def test_a_template_that_holds_a_game_stays_as_it_is(template):
    assert mended(template) == FixedTemplate(template, ())


@pytest.mark.parametrize(
    ("template", "text", "changes"),
    [
        (None, PLAIN, ["the tokenizer has no chat template: a plain one is used"]),
        (THINKING, THINKING_OFF + THINKING, ["thinking is switched off"]),
        (DATED, FIXED_DATE + DATED, [f"the date in the prompt is always {DATE}"]),
        (USERS_ONLY + CHATML, FOLDED_SYSTEM + USERS_ONLY + CHATML, [FOLDED]),
        (DEAF, FOLDED_SYSTEM + DEAF, [FOLDED]),
        (
            USERS_ONLY + DATED + THINKING,
            THINKING_OFF + FIXED_DATE + FOLDED_SYSTEM + USERS_ONLY + DATED + THINKING,
            ["thinking is switched off", f"the date in the prompt is always {DATE}", FOLDED],
        ),
    ],
    ids=["none", "thinking", "date", "no system role", "deaf to the system", "all three"],
)
def test_a_fix_is_reported_and_made_once(template, text, changes):
    assert mended(template) == FixedTemplate(text, tuple(changes))
    assert mended(text) == FixedTemplate(text, ())


def test_of_several_templates_the_default_one_is_taken():
    others = {"tool_use": DEAF, "default": CHATML}
    assert mended(others) == FixedTemplate(CHATML, ())
    assert mended({"chat": CHATML, "tool_use": DEAF}) == FixedTemplate(CHATML, ())
    assert mended({}).text == PLAIN


def test_a_past_that_is_rewritten_is_kept_by_trls_variant_in_plain_jinja():
    own = trl_template("qwen3")
    tokenizer = build_tokenizer(own)
    found = fixed_template(tokenizer)
    assert found.changes == ("thinking is switched off", KEPT)
    assert tokenizer.chat_template == own
    assert re.search(r"\{%-?\s*(end)?generation", found.text) is None
    variant = get_training_chat_template(tokenizer)
    assert shown(found.text, CONVERSATION) == shown(variant, CONVERSATION, enable_thinking=False)
    first = shown(found.text, FIRST_TURN)
    assert shown(found.text, CONVERSATION).startswith(first + "1<|im_end|>")


def test_a_kept_past_and_a_folded_system_text_come_together(monkeypatch):
    variant = USERS_ONLY + CHATML
    monkeypatch.setattr(
        "trl.chat_template_utils.get_training_chat_template", lambda tokenizer: variant
    )
    found = mended(USERS_ONLY + LAST_MARKED)
    assert found == FixedTemplate(FOLDED_SYSTEM + variant, (f"{KEPT}; {FOLDED}",))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('of a ' + messages[0].role) }}", "of a system"),
        ("{{ messages|length + 'a' }}{# enable_thinking #}", "unsupported operand"),
        ("hello", "the system text is not shown"),
    ],
)
def test_a_template_that_nothing_mends_is_refused_with_its_first_error(template, reason):
    with pytest.raises(ChatTemplateError, match=f"system, user and assistant messages: .*{reason}"):
        mended(template)


def test_the_system_text_is_folded_into_the_first_user_turn_alone():
    text = shown(FOLDED_SYSTEM + USERS_ONLY + CHATML, CONVERSATION)
    assert text.count("You play a game.\n\nRound 1\n1 -> first") == 1
    assert text.count("<|im_start|>user") == 2
    with pytest.raises(TemplateError, match="no system"):
        shown(USERS_ONLY + CHATML, CONVERSATION)
