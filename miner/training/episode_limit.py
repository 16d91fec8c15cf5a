"""How many tokens an episode may have: from the games and the model's own tokenizer."""

from __future__ import annotations

import logging
import math

from miner.channels.base import Lengths
from miner.channels.registry import make_channel
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.rollout.renderer import ChatRenderer

logger = logging.getLogger(__name__)

TASKS_TRIED = 40
"""First tasks of the stream: all deck sizes and both seats are among them."""

MARGIN = 1.1
"""A server may word its turns at greater length than we do (1.02 times, as recorded)."""


def longest_episode_tokens(settings: Settings, renderer: ChatRenderer) -> int | None:
    """Tokens of the longest chat that a policy can bring about, every reply as long as it may be.

    None where the channel does not know its lengths.
    """
    lengths = _lengths(settings, renderer)
    return None if lengths is None else _longest(lengths, settings)


def _lengths(settings: Settings, renderer: ChatRenderer) -> Lengths | None:
    channel = make_channel(settings.environment)
    tasks = [channel.tasks.training(i, settings.seed) for i in range(TASKS_TRIED)]
    return channel.lengths(tasks, renderer)


def _longest(lengths: Lengths, settings: Settings) -> int:
    return math.ceil(lengths.longest * MARGIN) + lengths.replies * settings.rollout.max_reply_tokens


def with_episode_limit(settings: Settings, renderer: ChatRenderer, context: int) -> Settings:
    """The settings with `rollout.max_episode_tokens` filled in.

    A limit that the user or the plan has set stays, and is warned about where games may exceed it:
    such episodes are lost and nothing is learned from them. Channels that do not know their lengths
    have the model's context for a limit.

    Args:
        context: tokens that the model can attend to.

    Raises: `ConfigurationError` where the context has no room for even the shortest game.
    """
    given = settings.rollout.max_episode_tokens
    lengths = _lengths(settings, renderer)
    if lengths is None:
        return _with_limit(settings, context if given is None else min(context, given))
    if context < lengths.shortest:
        raise ConfigurationError(
            f"the model's context of {context:,} tokens has no room for a game: the shortest takes "
            f"{lengths.shortest:,}, so that nothing can be learned; the base is handed over as it "
            "is"
        )
    longest = _longest(lengths, settings)
    limit = min(context, longest if given is None else given)
    if limit < longest:
        cause = "the model's context" if limit == context else "rollout.max_episode_tokens"
        logger.warning(
            "games may take up to %d tokens, but %s allows %d: longer ones are lost, and are never "
            "learned from",
            longest, cause, limit,
        )  # fmt: skip
    return _with_limit(settings, limit)


def _with_limit(settings: Settings, limit: int) -> Settings:
    rollout = settings.rollout.model_copy(update={"max_episode_tokens": limit})
    return settings.model_copy(update={"rollout": rollout})
