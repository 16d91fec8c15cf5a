"""Messages to tokens and back, exactly by the model's chat template.

Invariants:
* every prompt is the template's text of the whole conversation, as the grader's server renders it;
* held ids are never replaced: `continue_prompt` returns only what comes after them, or reports that
  the template rewrites the past, so that they cannot be continued;
* where special tokens separate the text, only what is new is tokenised; this shortcut is checked
  against tokenising the whole at construction, and not taken if it fails.
"""

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from miner.environments.base import Message, Tool
from miner.inference.sampler import Sample
from miner.rollout.chat_template import CONVERSATION, FIRST_TURN, REPLY

logger = logging.getLogger(__name__)

CACHED_TEXTS = 512
"""Texts whose tokens are remembered: enough for the episodes of one rollout to share them."""
LONGEST_CACHED = 64 * 1024
"""Characters: longer ones, which a server may send, would fill the memory."""


class DriftKind(Enum):
    """Relation of a turn's prompt to the ids held so far."""

    CLEAN = "clean"
    """Tokenising the whole prompt again gives the held ids and then the new ones; or nothing was to
    be continued, because the environment began a fresh chat."""
    REALIGN = "realign"
    """The text is the same, its canonical token boundaries are not: held ids stay as sampled."""
    FORK = "fork"
    """The template rewrites the past (strips thoughts, trims replies): a new row begins."""


class TokenizerError(ValueError):
    """The tokenizer cannot hold a conversation; the message names what it lacks."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next prompt: `new_ids` come after the held ids, or are all of it after a FORK."""

    drift: DriftKind
    text: str
    new_ids: tuple[int, ...]


class ChatRenderer:
    """Renders conversations with the tokenizer's own chat template.

    Args:
        ends: ids that end the model's replies besides the tokenizer's EOS.
        plain_tools: give the template tools as requests send them, in the place of SGLang's shape,
            which they have in messages and rows.

    Raises: TokenizerError without a usable chat template or EOS token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int] = (),
        *,
        plain_tools: bool = False,
    ) -> None:
        self.eos_token_id = _checked_eos(tokenizer)
        self._ends = ends
        self._plain_tools = plain_tools
        self._tokenizer = tokenizer
        # Members of a group see the same prompts at first, and give the same replies often.
        self._encode = lru_cache(maxsize=CACHED_TEXTS)(self._encode_anew)
        self._decode = lru_cache(maxsize=CACHED_TEXTS)(self._decode_anew)
        try:
            probe = self.render(CONVERSATION)
        except TemplateError as error:
            raise TokenizerError(
                f"the chat template of {tokenizer.name_or_path!r} does not render a conversation "
                f"of system, user and assistant messages: {error}"
            ) from error
        self._boundaries = tuple(token for token in _isolating(tokenizer) if token in probe)
        if not self._boundaries_separate(probe):
            logger.warning("special tokens do not separate the text: whole prompts are tokenised")
            self._boundaries = ()
        self._first_prompt = self.render(FIRST_TURN)
        self._reply_end = self._end_in(probe, ends)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are built again: two threads must not use one tokenizer at once."""
        made = partial(ChatRenderer, plain_tools=self._plain_tools)
        return made, (self._tokenizer, self._ends)

    def _end_in(self, probe: str, ends: Collection[int]) -> int:
        """The token of `ends` that the template puts after a reply, else EOS."""
        past = self._first_prompt + REPLY
        following = self.encode(probe[len(past) :])[:1] if probe.startswith(past) else ()
        return next((token for token in following if token in ends), self.eos_token_id)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The prompt text for the assistant's next reply, or for the rest of one that is last.

        Args:
            tools: functions on offer; templates print what they get, so their keys' order counts.
        """
        if messages[-1]["role"] == "assistant":
            return self.render(messages[:-1], tools) + messages[-1]["content"]
        conversation = [{"role": m["role"], "content": m["content"]} for m in messages]
        text = self._tokenizer.apply_chat_template(
            conversation,
            tools=(list(map(_as_sent, tools)) if self._plain_tools else list(tools)) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text that the template has already furnished with special tokens."""
        return self._encode_anew(text) if len(text) > LONGEST_CACHED else self._encode(text)

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Ids of a whole reply as the model would sample it, with the token that ends it.

        They depend on what comes before: a space that some tokenizers put there, or numbers that
        are one token only behind the prompt's last one. So a prompt goes before.
        """
        prompt = self._first_prompt
        before, whole = self.encode(prompt), self.encode(prompt + text)
        if whole[: len(before)] != before:
            before, whole = (), self.encode(text)
        return (*whole[len(before) :], self._reply_end)

    def reply_text(self, sample: Sample, *, special_tokens: bool = False) -> str:
        """The reply for the environment, with special tokens only if asked for."""
        return self._decode(_body(sample), skip_special_tokens=not special_tokens)

    def continue_prompt(
        self,
        messages: Sequence[Message],
        held_text: str,
        sample: Sample,
        tools: Sequence[Tool] = (),
    ) -> Continuation:
        """The prompt that follows a reply.

        Args:
            messages: the whole conversation, the reply and the environment's answer included.
            held_text: text of the prompt that `sample` answered.
            sample: the reply.
            tools: functions that the conversation offers.
        """
        text = self.render(messages, tools)
        body, reply = _body(sample), self.reply_text(sample)
        past = held_text + reply
        end = self._decode(sample.token_ids[len(body) :], skip_special_tokens=False)
        if not self._is_plain_text(body) or not text.startswith(past + end):
            return Continuation(DriftKind.FORK, text, self.encode(text))
        suffix = text[len(past) :]
        if not suffix.startswith(self._boundaries or ("\0",)):
            return self._continue_undivided(text, held_text, sample, past + end)
        new_ids = self.encode(suffix)[1 if end else 0 :]
        kind = (
            DriftKind.CLEAN
            if self._retokenises_to_itself(self._tail(held_text), body)
            else DriftKind.REALIGN
        )
        return Continuation(kind, text, new_ids)

    def continue_reply(self, held_text: str, sample: Sample, appended: str) -> Continuation:
        """The prompt in which `appended` continues the assistant's message after its `sample`.

        A sampled end-of-turn token has closed that message, so that a new row begins without it.
        """
        past = held_text + self.reply_text(sample)
        text = past + appended
        if sample.finish_reason == "stop" or not self._is_plain_text(sample.token_ids):
            return Continuation(DriftKind.FORK, text, self.encode(text))
        return self._continue_undivided(text, held_text, sample, past)

    def _is_plain_text(self, body: tuple[int, ...]) -> bool:
        """Return whether nothing of the ids is lost in their text, as special tokens are."""
        plain, whole = (self._decode(body, skip_special_tokens=skip) for skip in (True, False))
        return plain == whole

    def _encode_anew(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _continue_undivided(
        self, text: str, held_text: str, sample: Sample, past: str
    ) -> Continuation:
        """End of the reply, where no special token separates it from what follows `past`."""
        whole = self.encode(text)
        canonical = self.encode(held_text) + sample.token_ids
        if whole[: len(canonical)] == canonical:
            return Continuation(DriftKind.CLEAN, text, whole[len(canonical) :])
        new_ids = self.encode(text[len(past) :])
        if (
            self._tokenizer.decode(list(canonical + new_ids), clean_up_tokenization_spaces=False)
            == text
        ):
            return Continuation(DriftKind.REALIGN, text, new_ids)
        return Continuation(DriftKind.FORK, text, whole)

    def _tail(self, text: str) -> str:
        """`text` from its last special token on: what the reply's tokens may merge with."""
        return text[max([0, *map(text.rfind, self._boundaries)]) :]

    def _retokenises_to_itself(self, tail: str, body: tuple[int, ...]) -> bool:
        reply = self._decode(body, skip_special_tokens=False)
        return self.encode(tail + reply) == self.encode(tail) + body

    def _boundaries_separate(self, text: str) -> bool:
        """Return whether special tokens are single ids between which text is tokenised
        independently."""
        if not self._boundaries or any(len(self.encode(token)) != 1 for token in self._boundaries):
            return False
        pieces = re.split("(?=" + "|".join(map(re.escape, self._boundaries)) + ")", text)
        return sum(map(self.encode, pieces), ()) == self.encode(text)

    def _decode_anew(self, ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        """Text of `ids` as it reads within a longer text.

        Some tokenizers drop a space at the start of what they decode, so something goes before.
        """
        anchor = self.encode(":")
        before, whole = (
            self._tokenizer.decode(
                some, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
            for some in ([*anchor], [*anchor, *ids])
        )
        return str(whole).removeprefix(str(before))


def _body(sample: Sample) -> tuple[int, ...]:
    """The sampled ids without the end-of-turn token."""
    return sample.token_ids[:-1] if sample.finish_reason == "stop" else sample.token_ids


def _isolating(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Special tokens that are split off the text before anything else is tokenised."""
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word)
    ]


def _as_sent(tool: Tool) -> Tool:
    """A tool with its keys in a request's order, and without what SGLang adds."""
    function = tool["function"]
    kept = {key: function[key] for key in ("name", "description", "parameters") if key in function}
    return {"type": "function", "function": kept}


def _checked_eos(tokenizer: PreTrainedTokenizerBase) -> int:
    name = tokenizer.name_or_path
    if not tokenizer.chat_template:
        raise TokenizerError(
            f"the tokenizer {name!r} has no chat template: use an instruction-tuned model or set "
            "tokenizer.chat_template"
        )
    if tokenizer.eos_token_id is None:
        raise TokenizerError(
            f"the tokenizer {name!r} has no eos token: set tokenizer.eos_token to one of its "
            "special tokens"
        )
    return int(tokenizer.eos_token_id)
