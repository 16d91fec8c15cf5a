"""Chat templates as base models bring them, made such that a game can be played and learned.

Invariants:
* a template that can hold a game's conversation as it is stays as it is, byte for byte;
* a fix holds for the grader too: the fixed template is published with the model,
  so that the prompts that are trained are the prompts that are graded.

The fixes, each with its reason:
* no template: the validator's for such a base (`base_templates`), else a plain one, without which
  no server could chat with the model at all;
* thinking that can be switched off is: a thought is longer than the replies that are trained, and
  the tournament's clock counts it;
* no system role (an error, or its text is not shown): its text opens the first user turn;
* a past that is rewritten every turn: TRL's variant of the same template that keeps it, if it has
  one. Each rewritten turn would be a separate row, with the whole past in it again;
* today's date: the template's own default, since the grader renders on another day.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from miner.environments.base import Message
from miner.rollout.base_templates import base_template

FIRST_TURN: tuple[Message, ...] = (
    {"role": "system", "content": "You play a game."},
    {"role": "user", "content": "Round 1\n1 -> first\nYour move?"},
)
REPLY = "1"
CONVERSATION: tuple[Message, ...] = (
    *FIRST_TURN,
    {"role": "assistant", "content": REPLY},
    {"role": "user", "content": "Round 2\nYour move?"},
)
"""A conversation of the form that environments produce."""

PLAIN = (
    "{{ bos_token if bos_token is defined and bos_token else '' }}"
    "{%- for message in messages %}"
    "{{- '### ' + message['role'] + '\\n' + message['content'] }}"
    "{{- eos_token + '\\n\\n' if message['role'] == 'assistant' else '\\n\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '### assistant\\n' }}{%- endif %}"
)

THINKING_OFF = "{%- set enable_thinking = false %}"
DATE = "26 Jul 2024"
FIXED_DATE = f"{{%- set date_string = '{DATE}' %}}"
FOLDED_SYSTEM = (
    "{%- if messages[0]['role'] == 'system' and messages|length > 1 %}"
    "{%- set messages = [{'role': 'user', 'content': messages[0]['content'] + '\\n\\n' + "
    "messages[1]['content']}] + messages[2:] %}"
    "{%- endif %}"
)
REFUSALS = (TemplateError, TypeError, ValueError, KeyError)
"""Errors of rendering with a template that cannot take the messages."""
_GENERATION_TAG = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")


class ChatTemplateError(ValueError):
    """The template cannot render a game's conversation, fixed or not."""


@dataclass(frozen=True, slots=True)
class FixedTemplate:
    """A template that renders conversations, and one sentence for each change; empty: none."""

    text: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    template: str
    change: str


def fixed_template(tokenizer: PreTrainedTokenizerBase, model_type: str = "") -> FixedTemplate:
    """The template that games are played with; a base without one is known by `model_type`.

    Raises: `ChatTemplateError` if nothing makes it render system, user and assistant messages.
    """
    own, changes = _own_template(tokenizer, model_type)
    prefix = ""
    if _reads(own, "enable_thinking") and _switches_thinking(tokenizer, own):
        prefix += THINKING_OFF
        changes = (*changes, "thinking is switched off")
    if FIXED_DATE not in own and _reads(own, "strftime_now") and _reads(own, "date_string"):
        prefix += FIXED_DATE
        changes = (*changes, f"the date in the prompt is always {DATE}")
    usable: list[_Candidate] = []
    failure: Exception | None = None
    for candidate in _candidates(tokenizer, own):
        template = prefix + candidate.template
        try:
            shown = _shows_system(tokenizer, template)
            keeps = _keeps_the_past(tokenizer, template)
        except REFUSALS as error:
            failure = failure or error
            continue
        if shown and keeps:
            usable.insert(0, candidate)
            break
        if shown:
            usable.append(candidate)
    if not usable:
        raise ChatTemplateError(
            f"the chat template of {tokenizer.name_or_path!r} does not render a conversation of "
            f"system, user and assistant messages: {failure or 'the system text is not shown'}"
        )
    best = usable[0]
    changes = (*changes, best.change) if best.change else changes
    return FixedTemplate(prefix + best.template, changes)


def _own_template(
    tokenizer: PreTrainedTokenizerBase, model_type: str
) -> tuple[str, tuple[str, ...]]:
    own: Any = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("default") or next(iter(own.values()), None)
    if own:
        return str(own), ()
    if (given := base_template(model_type)) is not None:
        return given[0], (f"the tokenizer has no chat template: {given[1]}",)
    return PLAIN, ("the tokenizer has no chat template: a plain one is used",)


def _candidates(tokenizer: PreTrainedTokenizerBase, own: str) -> Iterator[_Candidate]:
    """Variants of the template, the least changed first."""
    variants = [_Candidate(own, "")]
    yield variants[0]
    keeping = _past_keeping(tokenizer, own)
    if keeping is not None:
        kept = _Candidate(keeping, "replies keep their form in the history")
        yield kept
        variants.append(kept)
    for variant in variants:
        folded = "the system text opens the first user turn"
        changes = "; ".join(filter(None, (variant.change, folded)))
        yield _Candidate(FOLDED_SYSTEM + variant.template, changes)


def _past_keeping(tokenizer: PreTrainedTokenizerBase, own: str) -> str | None:
    """TRL's variant that does not rewrite the past, in the words of plain Jinja."""
    from trl.chat_template_utils import get_training_chat_template  # imports torch: seconds

    before = tokenizer.chat_template
    try:
        tokenizer.chat_template = own
        variant = get_training_chat_template(tokenizer)
    except REFUSALS:  # a template that TRL does not know, or that cannot take its tool calls
        return None
    finally:
        tokenizer.chat_template = before
    if variant is None:
        return None
    return _GENERATION_TAG.sub(
        lambda tag: f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}", variant
    )


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", template) is not None


def _switches_thinking(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    user = FIRST_TURN[1:]
    try:
        on = _render(tokenizer, user, template)
        return on != _render(tokenizer, user, template, enable_thinking=False)
    except REFUSALS:
        return False


def _shows_system(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    shown = _render(tokenizer, FIRST_TURN, template)
    return all(str(message["content"]) in shown for message in FIRST_TURN)


def _keeps_the_past(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    """Return whether a later prompt begins with the earlier one and the reply."""
    first = _render(tokenizer, FIRST_TURN, template)
    return _render(tokenizer, CONVERSATION, template).startswith(first + REPLY)


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str, **names: Any
) -> str:
    conversation = [{"role": m["role"], "content": m["content"]} for m in messages]
    return str(
        tokenizer.apply_chat_template(
            conversation,
            chat_template=template,
            add_generation_prompt=True,
            tokenize=False,
            **names,
        )
    )
