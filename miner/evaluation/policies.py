"""Policies: baselines that read what is shown, any OpenAI-compatible endpoint, a local model.

Invariant: a policy sees only the chat, as the grader would send it, and answers with text; each
episode has a separate conversation, so that many can be under way at once.
"""

import json
from dataclasses import replace
from random import Random
from typing import Protocol

from miner.config.contract import agent_seat
from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask, Observation, Tool
from miner.environments.listing import parse_listing
from miner.environments.playing import TextConversation
from miner.games import GAMES, RANDOM, StateTextError
from miner.inference.sampler import (
    EngineLostError,
    Sample,
    Sampler,
    SamplerError,
    SamplingParams,
    new_session,
)
from miner.rollout.chat_template import REFUSALS
from miner.rollout.renderer import ChatRenderer


class PolicyError(RuntimeError):
    """The policy could not answer; the episode scores 0, as it would with the grader."""


class PromptTooLongError(PolicyError):
    """The prompt leaves no room for a reply where the model is run, which has less room than where
    it will be served: the episode is excluded."""


class ForfeitError(PolicyError):
    """The same in an episode whose length is the policy's doing: it scores 0."""


class Policy(Protocol):
    """Makes conversations, whose replies may raise `PolicyError`."""

    @property
    def name(self) -> str:
        """Label of the results."""

    @property
    def temperature(self) -> float | None:
        """Sampling temperature, None without sampling."""

    def conversation(self, task: EpisodeTask) -> TextConversation:
        """A new conversation for an episode of `task`."""

    async def close(self) -> None:
        """Release what the policy holds (connections, threads)."""


class BaselinePolicy:
    """A fixed rule: "random" (any game), or one of a game's `policies`.

    Randomness is seeded by the episode, so equal tasks give equal replies.
    Raises: `ConfigurationError` for another name.
    """

    temperature = None

    def __init__(self, name: str) -> None:
        known = [RANDOM, *(rule for game in GAMES.values() for rule in game.policies)]
        if name not in known:
            raise ConfigurationError(f"unknown policy {name!r}: choose one of {', '.join(known)}")
        self._rules = {
            game.name: game.policies[name] for game in GAMES.values() if name in game.policies
        }
        scores = (score for game in GAMES.values() for score in game.references)
        self.name = next((score.name for score in scores if score.policy == name), name)

    def conversation(self, task: EpisodeTask) -> TextConversation:
        """A conversation with a separate generator."""
        rng = Random(task.seed)
        rule = self._rules.get(task.environment)
        if self._rules and rule is None:
            raise ConfigurationError(
                f"policy {self.name!r} plays {', '.join(self._rules)} only, not "
                f"{task.environment!r}: use random there"
            )

        async def reply(chat: Observation) -> str:
            if rule is None:
                return _drawn(chat, rng)
            try:
                return str(rule(chat.messages[-1]["content"], agent_seat(task.seed), rng))
            except StateTextError as error:
                raise PolicyError(str(error)) from error

        return TextConversation(reply)

    async def close(self) -> None:
        """Nothing to release."""


def _drawn(chat: Observation, rng: Random) -> str:
    """One of the listed legal actions, in every game."""
    if chat.tools:
        return _drawn_call(chat.tools[-1], rng)
    shown = chat.messages[-1]["content"]
    legal = parse_listing(shown)
    if not legal:
        raise PolicyError(f"no legal actions are listed in {shown[-200:]!r}")
    return str(rng.choice(sorted(legal)))


def _drawn_call(tool: Tool, rng: Random) -> str:
    """A call with one of the values that the tool's only argument may have, as Qwen writes it.

    Raises: `PolicyError` for a tool of another form.
    """
    function = tool["function"]
    try:
        [(name, argument)] = function["parameters"]["properties"].items()
        value = rng.choice(argument["enum"])
    except (KeyError, ValueError, IndexError) as error:
        raise PolicyError(f"no values to choose from are listed in {tool}") from error
    call = json.dumps({"name": function["name"], "arguments": {name: value}})
    return f"<tool_call>\n{call}\n</tool_call>"


class SamplerPolicy:
    """A model behind a `Sampler`: each turn the whole chat goes through the chat template, as the
    grader's server does it.

    Args:
        name: label of the results.
        sampler: the generation engine; it belongs to the caller.
        renderer: the model's chat template.
        params: temperature and the longest reply in tokens (the grader sets no such limit).
        most_tokens: of a prompt and its reply, where the engine has room for no more: a reply ends
            where it is used up.
        least_reply: tokens that a reply needs room for; None: for the longest.
    """

    def __init__(
        self,
        name: str,
        sampler: Sampler,
        renderer: ChatRenderer,
        params: SamplingParams,
        most_tokens: int | None = None,
        least_reply: int | None = None,
    ) -> None:
        self.name = name
        self._most_tokens = most_tokens
        self._least_reply = params.max_tokens if least_reply is None else least_reply
        self._sampler = sampler
        self._renderer = renderer
        self._params = params

    @property
    def temperature(self) -> float:
        """Sampling temperature, 0 for greedy."""
        return self._params.temperature

    def conversation(self, task: EpisodeTask) -> TextConversation:
        """A conversation with a separate session in the sampler."""
        session = new_session()

        async def answer(chat: Observation) -> str:
            sample = await self._sample(chat, session)
            conversation.cut = sample.finish_reason == "length"
            return self._renderer.reply_text(sample, special_tokens=bool(chat.tools))

        conversation = TextConversation(answer, lambda: self._sampler.end_session(session))
        return conversation

    async def close(self) -> None:
        """The sampler belongs to the caller."""

    async def _sample(self, chat: Observation, session: int) -> Sample:
        try:
            prompt = self._renderer.encode(self._renderer.render(chat.messages, chat.tools))
        except REFUSALS as error:
            raise PolicyError(f"the chat template takes no such chat: {error}") from error
        params = replace(self._params, stop=(*self._params.stop, *chat.stop))
        if self._most_tokens is not None:
            room = self._most_tokens - len(prompt)
            if room < self._least_reply:
                replied = any(message["role"] == "assistant" for message in chat.messages)
                kind = ForfeitError if chat.too_long_forfeits and replied else PromptTooLongError
                raise kind(
                    f"a prompt of {len(prompt)} tokens and a reply of up to {self._least_reply} "
                    f"exceed the {self._most_tokens} that there is room for: raise "
                    "rollout.max_episode_tokens"
                )
            params = replace(params, max_tokens=min(params.max_tokens, room))
        try:
            return await self._sampler.sample(prompt, params, session=session)
        except EngineLostError:
            raise  # says nothing of the model: the game is played again
        except SamplerError as error:
            raise PolicyError(f"the model could not answer: {error}") from error
