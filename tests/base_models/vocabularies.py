"""Real vocabularies of somebody else's, from packages, as tokenizers with their special tokens.

Each is whole in one family. Others that share it take its beginning, which is a smaller vocabulary
of the same kind: a whole one takes seconds each time that it is made, written or read.
"""

import base64
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *(f"<|reserved_special_token_{n}|>" for n in (0, 1)),
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
MISTRAL_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
GEMMA_SPECIAL = ("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>")


BEGINNING = 16_384
"""Byte sequences of a vocabulary that is not taken whole."""


def qwen(special: tuple[str, ...], size: int | None) -> Tokenizer:
    """The first `size` or all of Qwen's 151,643 byte sequences (the package `dashscope`)."""
    file = _shipped("dashscope", "resources/qwen.tiktoken")
    return _with_special(_byte_pairs(file, QWEN_SPLIT, size), special)


def llama3(size: int | None) -> Tokenizer:
    """The first `size` or all of Llama-3's 128,000 byte sequences (the package `llama_models`)."""
    file = _shipped("llama_models", "llama3/tokenizer.model")
    return _with_special(_byte_pairs(file, LLAMA3_SPLIT, size), LLAMA3_SPECIAL)


def mistral() -> Tokenizer:
    """The newer Mistral vocabulary ("tekken", 131,072; a package that vLLM's builds bring)."""
    data = json.loads(_tekken()[0].read_text())
    special = data["config"]["default_num_special_tokens"]
    size = data["config"]["default_vocab_size"] - special
    ranks = {base64.b64decode(e["token_bytes"]): e["rank"] for e in data["vocab"][:size]}
    return _with_special(_tokenizer(ranks, data["config"]["pattern"]), MISTRAL_SPECIAL)


def numbers(special: tuple[str, ...], size: int) -> Tokenizer:
    """`size` made tokens, for a model that is sent ids."""
    words = {f"t{number}": number for number in range(size)}
    return _with_special(Tokenizer(models.WordLevel(words, unk_token="t0")), special)


def fast(tokenizer: Tokenizer, template: str | None, **special: str) -> PreTrainedTokenizerBase:
    """What transformers loads from a model folder."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **special,
    )


def missing(family: str) -> str:
    """Why the vocabulary of `family` is not there; empty if it is."""
    if family == "mistral" and not _tekken():
        return "Mistral's vocabulary comes with .venv-vllm, which this machine cannot have"
    return ""


def _tekken() -> list[Path]:
    """Where it lies; beside transformers the package would change how Mistral's folders load."""
    packages = Path(__file__).parents[2] / ".venv-vllm" / "lib"
    return sorted(packages.glob("python*/site-packages/mistral_common/data/tekken_240911.json"))


def _shipped(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported: it lacks what it depends on."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {package} is not installed: run make setup")
    return Path(spec.origin).parent / name


def _with_special(tokenizer: Tokenizer, special: tuple[str, ...]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    return tokenizer


def _byte_pairs(file: Path, split: str, size: int | None) -> Tokenizer:
    """A tokenizer from the first `size` lines, or all, of "base64 of the bytes, rank"."""
    pairs = (line.split() for line in file.read_bytes().splitlines()[:size])
    return _tokenizer({base64.b64decode(token): int(rank) for token, rank in pairs}, split)


def _tokenizer(ranks: dict[bytes, int], split: str) -> Tokenizer:
    letters = _letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = sorted(
        (
            (ranks[token], spelt[token[:cut]], spelt[token[cut:]])
            for token in ranks
            for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks
        ),
        key=lambda merge: merge[0],
    )
    tokenizer = Tokenizer(
        models.BPE(
            {spelt[token]: rank for token, rank in ranks.items()},
            [(left, right) for _, left, right in merges],
            ignore_merges=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@cache
def _letters() -> dict[int, str]:
    """One printable letter for each byte, in GPT-2's alphabet: printable bytes as themselves, the
    others from 256 on, in ascending order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }
