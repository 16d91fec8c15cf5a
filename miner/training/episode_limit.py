"""How many tokens an episode may have: from the games and the model's own tokenizer."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from miner.config.contract import DUEL_CHANNEL
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.duel.channel.longest import turn_tokens
from miner.duel.tournament_files import wording_of
from miner.environments.base import EpisodeTask
from miner.environments.games.longest import longest_conversation, shortest_conversation
from miner.evaluation.channels import CHANNELS
from miner.rollout.renderer import ChatRenderer
from miner.training.tasks import task_stream

logger = logging.getLogger(__name__)

TASKS_TRIED = 40
"""First tasks of the stream: all deck sizes and both seats are among them."""

MARGIN = 1.1
"""A server may word its turns at greater length than we do (1.02 times, as recorded)."""


def longest_episode_tokens(settings: Settings, renderer: ChatRenderer) -> int:
    """Tokens of the longest episode that a policy can bring about: every turn asked as often as it
    can be, every reply as long as it may be. In duels each turn is a chat of its own."""
    if settings.environment.channel == DUEL_CHANNEL:
        turn = max(turn_tokens(_first_tasks(settings), wording_of(None), renderer).values())
        return math.ceil(turn * MARGIN) + settings.rollout.max_reply_tokens
    conversation = longest_conversation(_first_tasks(settings))
    replies = sum(message["role"] == "assistant" for message in conversation)
    tokens = len(renderer.encode(renderer.render(conversation)))
    return math.ceil(tokens * MARGIN) + replies * settings.rollout.max_reply_tokens


def _shortest_episode_tokens(settings: Settings, renderer: ChatRenderer) -> int:
    if settings.environment.channel == DUEL_CHANNEL:
        return min(turn_tokens(_first_tasks(settings), wording_of(None), renderer).values())
    shortest = shortest_conversation(_first_tasks(settings))
    return len(renderer.encode(renderer.render(shortest)))


def _first_tasks(settings: Settings) -> Iterator[EpisodeTask]:
    tasks = task_stream(settings.environment)
    return (tasks.training(i, settings.seed) for i in range(TASKS_TRIED))


def with_episode_limit(settings: Settings, renderer: ChatRenderer, context: int) -> Settings:
    """The settings with `rollout.max_episode_tokens` filled in.

    A limit that a person or the plan has set stays, and is warned about where games may exceed it:
    such episodes are lost and nothing is learned from them. Channels other than the games'
    have the model's context for a limit.

    Args:
        context: tokens that the model can attend to.

    Raises: `ConfigurationError` where the context has no room for even the shortest game.
    """
    if settings.environment.channel in CHANNELS:  # which do not say how long their texts become
        given = settings.rollout.max_episode_tokens
        return _with_limit(settings, context if given is None else min(context, given))
    _check_context(settings, renderer, context)
    longest = longest_episode_tokens(settings, renderer)
    given = settings.rollout.max_episode_tokens
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


def _check_context(settings: Settings, renderer: ChatRenderer, context: int) -> None:
    least = _shortest_episode_tokens(settings, renderer)
    if context < least:
        raise ConfigurationError(
            f"the model's context of {context:,} tokens has no room for a game: the shortest takes "
            f"{least:,}, so that nothing can be learned; the base is handed over as it is"
        )
