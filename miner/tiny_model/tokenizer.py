"""A byte-level tokenizer whose tokens are whole lines, with numbers of lists standing apart.

Invariants:
* every text encodes and decodes to itself: the rest falls back to pieces and bytes;
* a line that is a label and one number is one token; any other number between blanks is a
  separate token, the same one after every label;
* ids of options, as replies, are single tokens: "0" to "99";
* a longer conversation renders to the shorter one's rendering, the reply, EOS and the rest.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
NUMBERS = 100
"""Numbers below this are single tokens."""
_MERGES = 150

_REMARK = r"\n\([^\n]*\)"
_OPTION = r"\n?\d+ ->(?: [^\n]*)?"
_DIGITS = r" ?\d{2}(?=\d)"
_NUMBER = r" ?-?\d{1,2}(?=[ \n]|$)"
_LABELLED = r"\n[^\n\d:]+: \d{1,2}(?=\n|$)"
_WORDS = r" ?\n*(?:(?! -?\d+(?:[ \n]|$))[^\n])+"
_PIECES = "|".join((_LABELLED, _REMARK, _OPTION, _DIGITS, _NUMBER, _WORDS, r"\s+"))
"""The pieces a text is cut into; _WORDS runs to the next number that stands apart, or line end."""


def build_tokenizer(texts: Iterable[str], prose: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, EOS and padding; a pure function of its arguments.

    Args:
        texts: texts as the model will see them; pieces found twice become whole tokens.
        prose: further texts; each of their pieces becomes a whole token, and the byte pair
            merges, which all other text falls back to, are learned from their words.
    """
    prose = tuple(prose)
    cut = _pre_tokenizer(_PIECES)
    counts = Counter(piece for text in texts for piece in _pieces(cut, text))
    common = sorted((p for p, n in counts.items() if n >= 2), key=lambda p: (-counts[p], p))
    words = dict.fromkeys(piece for text in prose for piece in _pieces(cut, text))
    pairs = _learn_merges(prose)
    vocabulary: dict[str, int] = {}
    for token in (
        PAD,
        EOS,
        *ROLES,
        *_ALPHABET,
        *("".join(pair) for pair in pairs),
        *_number_tokens(cut),
        *common,
        *words,
    ):
        vocabulary.setdefault(token, len(vocabulary))
    return chat_tokenizer(vocabulary, pairs, cut)


def chat_tokenizer(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    cut: pre_tokenizers.Sequence,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer over this vocabulary, with the tiny models' chat template.

    Args:
        cut: splits a text into the pieces that are looked up whole before `merges` apply.
    """
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def piece_tokenizer(pattern: str, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with the tiny models' chat template: its tokens are the pieces of `texts` that
    the regular expression `pattern` cuts, and bytes for all else."""
    cut = _pre_tokenizer(pattern)
    found = (piece for text in texts for piece in _pieces(cut, text))
    tokens = dict.fromkeys((PAD, EOS, *ROLES, *_ALPHABET, *found))
    return chat_tokenizer({token: index for index, token in enumerate(tokens)}, [], cut)


def _byte_level(use_regex: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _pre_tokenizer(pattern: str) -> pre_tokenizers.Sequence:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, _byte_level()])


def _pieces(cut: pre_tokenizers.Sequence, text: str) -> list[str]:
    """Pieces of a text, in the characters that stand for bytes."""
    return [piece for piece, _ in cut.pre_tokenize_str(text)]


def _number_tokens(cut: pre_tokenizers.Sequence) -> Iterator[str]:
    for number in range(NUMBERS):
        yield _pieces(cut, f" {number}")[0]
        yield str(number)


def _learn_merges(prose: tuple[str, ...]) -> list[tuple[str, str]]:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _byte_level(use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=len(_ALPHABET) + _MERGES,
        initial_alphabet=_ALPHABET,
        show_progress=False,
    )
    learner.train_from_iterator(prose, trainer)
    return [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
