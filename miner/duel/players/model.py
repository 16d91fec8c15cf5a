"""A model folder played in this process as the tournament serves it: greedy, by its own template.

Imports torch; only a model that plays needs this module.
"""

from pathlib import Path

import torch

from miner.config.contract import SERVING_DTYPE
from miner.duel.calls import content_of, parse_calls
from miner.duel.family import folder_family
from miner.duel.memory import TokenCounter, TokenizerCounter
from miner.duel.outcome import Cause
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit
from miner.duel.tools import offered_tools, shaped, without_thoughts
from miner.duel.turn import TEMPERATURE, Request
from miner.inference.sampler import SamplerError, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.model_folder import LoadedChat, load_model_folder

MAX_SESSIONS = 64
"""Requests of one model that decode together."""


class ModelPlayer:
    """Plays by a `Sampler`: many games at once share its batches.

    Args:
        sampler: generates; closed with the player.
        chat: the model's tokenizer and template, for prompts and for counting notes.
        family: of the tool-call parser, one of `calls.FORMS`.
        context: longest prompt and reply together, in tokens.
    """

    def __init__(
        self,
        name: str,
        sampler: TransformersSampler,
        chat: LoadedChat,
        *,
        family: str,
        context: int,
    ) -> None:
        self.name = name
        self._sampler = sampler
        self._renderer = chat.renderer
        self._family = family
        self._context = context
        self.counter: TokenCounter = TokenizerCounter(chat.tokenizer)

    async def reply(self, request: Request) -> Reply:
        """Sample one reply and read its calls. Raises: see `Player.reply`."""
        chat = self._renderer.render(request.messages, shaped(request.tools))
        prompt = self._renderer.encode(chat)
        if len(prompt) + request.max_tokens > self._context:
            raise ReplyForfeit(
                Cause.CONTEXT,
                f"a prompt of {len(prompt)} tokens and a reply of {request.max_tokens} exceed the "
                f"model's context of {self._context}",
            )
        try:
            sample = await self._sampler.sample(
                prompt, SamplingParams(request.max_tokens, TEMPERATURE)
            )
        except SamplerError as error:
            raise PlayerError(f"{self.name} could not answer: {error}") from error
        # Some models' call marks are special tokens: the serving engine keeps them too.
        text = self._renderer.reply_text(sample, special_tokens=True)
        calls = parse_calls(self._family, text, offered_tools(request.tools))
        return Reply(
            calls=calls,
            content=without_thoughts(content_of(self._family, text, calls)) or None,
            prompt_tokens=len(prompt),
            tokens=len(sample.token_ids),
        )

    async def close(self) -> None:
        """End the sampler's thread."""
        self._sampler.close()


def load_model_player(folder: Path, name: str) -> ModelPlayer:
    """A player over the model in `folder`: bfloat16 on a GPU (as served), float32 on a CPU.

    Raises: `ConfigurationError` for a folder without a usable model, or a model of no family that
        has a parser.
    """
    on_gpu = torch.cuda.is_available()
    loaded = load_model_folder(
        folder,
        getattr(torch, SERVING_DTYPE) if on_gpu else torch.float32,
        "cuda" if on_gpu else None,
    )
    sampler = TransformersSampler(loaded.model, loaded.chat.tokenizer, max_sessions=MAX_SESSIONS)
    return ModelPlayer(
        name,
        sampler,
        loaded.chat,
        family=folder_family(folder, loaded.chat.tokenizer),
        context=loaded.model.config.get_text_config().max_position_embeddings,
    )
