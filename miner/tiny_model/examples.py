"""Conversations as tokens, and batches of them as tensors."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from miner.tiny_model.number_following import Conversation
from miner.tiny_model.tokenizer import EOS, ROLES


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation as tokens: its ids, the positions before each answer, and the targets.

    Attributes:
        ids: the whole conversation.
        positions: index in `ids` of the token that each answer follows.
        answers: per answer, the token ids of the options and their probabilities.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    answers: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples as tensors. What fills their rows is on the right, where it is not read.

    Attributes:
        ids: shape (examples, tokens).
        row, column: index in `ids` of the token that each answer follows, by example and turn;
            shape (answers,) each.
        wanted: distribution over the vocabulary for each answer; shape (answers, vocabulary).
    """

    ids: Tensor
    row: Tensor
    column: Tensor
    wanted: Tensor


class Encoder:
    """Turns conversations into examples, equal to their rendering by the chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        ids = tokenizer.convert_tokens_to_ids([*ROLES, EOS])
        self._system, self._user, self._assistant, self._eos = cast(list[int], ids)
        self._first_text_token = max(tokenizer.all_special_ids) + 1
        self._size = len(tokenizer)
        self._vocabulary = tokenizer.get_vocab()

    def encode(self, conversations: Sequence[Conversation], rng: random.Random) -> list[Example]:
        """Examples in the order of the conversations; `rng` draws the tokens of noise."""
        texts = (text for c in conversations for text in (c.system, *(t.text for t in c.turns)))
        encoded = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        pieces = (encoding.ids for encoding in encoded)
        return [
            self._example(c, [next(pieces) for _ in range(1 + len(c.turns))], rng)
            for c in conversations
        ]

    def _example(
        self, conversation: Conversation, texts: list[list[int]], rng: random.Random
    ) -> Example:
        system = texts[0]
        if conversation.noise_tokens:
            system = rng.choices(
                range(self._first_text_token, self._size), k=conversation.noise_tokens
            )
        ids = [self._system, *system, self._eos] if system else []
        positions, answers = [], []
        for turn, text in zip(conversation.turns, texts[1:], strict=True):
            ids += (self._user, *text, self._eos, self._assistant)
            positions.append(len(ids) - 1)
            options = tuple(self._vocabulary[str(option)] for option in turn.ids)
            answers.append((options, turn.probabilities))
            ids += (options[turn.ids.index(turn.answer)], self._eos)
        return Example(tuple(ids), tuple(positions), tuple(answers))


def collate(examples: Sequence[Example], vocabulary: int) -> Batch:
    """Examples as one batch, padded to the longest."""
    answers = [answer for example in examples for answer in example.answers]
    places = [(row, at) for row, example in enumerate(examples) for at in example.positions]
    row, column = torch.tensor(places).unbind(1)
    wanted = torch.zeros(len(answers), vocabulary)
    rows = [answer for answer, (options, _) in enumerate(answers) for _ in options]
    columns = [option for options, _ in answers for option in options]
    wanted[rows, columns] = torch.tensor([p for _, shares in answers for p in shares])
    ids = [torch.tensor(example.ids) for example in examples]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return Batch(padded, row, column, wanted)
