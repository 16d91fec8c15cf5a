"""The cheap check of a model folder: JSON files and safetensors headers, no tensor is read.

Invariants:
* nothing here imports torch or transformers: the orchestrator may call it;
* a truncated file, a missing shard, a missing tokenizer and every folder that the uploader or the
  grader would take for something else are found without reading weights;
* whether the tensors are the ones the architecture needs, and finite, is `load_check`'s part.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from miner.publishing.errors import UnverifiedModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000

_VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as a safetensors header declares it; `dtype` in the format's words ("BF16")."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Result of a check that a model folder passed.

    Attributes:
        parameters: count over all weight files.
        weight_bytes: size of all weight files.
        dtypes: parameters per dtype, in the words of safetensors ("BF16").
        warnings: properties that do not keep the grader from loading the folder.
        loaded: true if the weights were read and the model was loaded, not only the headers.
    """

    parameters: int
    weight_bytes: int
    dtypes: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    loaded: bool = False


def check_structure(folder: Path, *, strict: bool = True, published: bool = True) -> ModelReport:
    """Check `folder` without reading a weight.

    Args:
        published: false for a base model in its own folder, which may hold other files beside it,
            as Mistral's do: they are not copied.
        strict: true if a tokenizer without chat template, end or padding token is an error; a base
            model is published as it came, with a warning in the report instead.

    Raises: `UnverifiedModelError` naming the first defect.
    """
    if not folder.is_dir():
        raise UnverifiedModelError(f"{folder} is not a folder: publish a model there first.")
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise UnverifiedModelError(f'{folder / "config.json"} names no "model_type".')
    if published:
        _check_traps(folder)
    headers = read_headers(folder)
    warnings = _tokenizer_gaps(folder)
    if strict and warnings:
        raise UnverifiedModelError(f"{folder}: {warnings[0]}.")
    dtypes = by_dtype(headers)
    return ModelReport(
        parameters=dtypes.total(),
        weight_bytes=sum(file.stat().st_size for file in weight_files(folder)),
        dtypes=dict(dtypes),
        warnings=tuple(warnings),
    )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model in `folder`, sorted; empty if it has none.

    A single file wins over an index, as in transformers.
    Raises: `UnverifiedModelError` if the index cannot be used.
    """
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        return []
    return [folder / name for name in sorted(set(_weight_map(folder).values()))]


def read_headers(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the model in `folder` by name, after checking that the files are complete.

    Raises: `UnverifiedModelError` for missing, truncated or inconsistent weight files.
    """
    files = weight_files(folder)
    if not files:
        raise UnverifiedModelError(
            f"{folder} holds no {SINGLE_FILE} and no {INDEX_FILE}: save full weights as safetensors"
            f" (found: {', '.join(sorted(file.name for file in folder.iterdir())) or 'nothing'})."
        )
    headers = {file.name: read_header(file) for file in files}
    if files[0].name != SINGLE_FILE:
        for tensor, shard in _weight_map(folder).items():
            if tensor not in headers[shard]:
                raise UnverifiedModelError(
                    f"{folder / shard} lacks the tensor {tensor!r} that {INDEX_FILE} puts there."
                )
    return {name: entry for header in headers.values() for name, entry in header.items()}


def by_dtype(headers: Mapping[str, TensorEntry]) -> Counter[str]:
    """Number of parameters in each dtype."""
    counted: Counter[str] = Counter()
    for entry in headers.values():
        counted[entry.dtype] += entry.elements
    return counted


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Tensors of one safetensors file by name; the library checks header and size.

    Raises: `UnverifiedModelError` if file and header do not agree.
    """
    try:
        file.stat()  # an error of Python's has the cause apart from the path
        with safe_open(str(file), framework="np") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {
                name: TensorEntry(part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
    except OSError as error:
        raise UnverifiedModelError(f"{file} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise UnverifiedModelError(
            f"{file} is truncated, damaged or no safetensors file ({error})."
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises: `UnverifiedModelError` for any other content."""
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise UnverifiedModelError(f"{file} is larger than {MAX_JSON_BYTES} bytes.")
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise UnverifiedModelError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UnverifiedModelError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UnverifiedModelError(f"{file} holds a {type(content).__name__}, not a JSON object.")
    return content


def special_token(folder: Path, role: str) -> str | None:
    """The text of the tokenizer's `role` ("eos_token", "pad_token"), None if its files set none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder / name).get(role) if (folder / name).is_file() else None
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            return text
    return None


def _weight_map(folder: Path) -> dict[str, str]:
    index = folder / INDEX_FILE
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnverifiedModelError(f'{index} has no "weight_map" from tensors to files.')
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise UnverifiedModelError(f"{index} names {shard!r}, which is not a file beside it.")
    return weight_map


def _check_traps(folder: Path) -> None:
    """Folders that the uploader or the grader would take for something else."""
    if (folder / "adapter_config.json").exists():
        raise UnverifiedModelError(
            f"{folder} holds adapter_config.json and would be taken for an adapter, which the"
            " grader may ignore: publish merged full weights without it."
        )
    used = set(weight_files(folder))
    for child in sorted(folder.iterdir()):
        if child.is_dir() and any(child.glob("*.safetensors")):
            raise UnverifiedModelError(
                f"{child} holds safetensors files: the uploader would take this subfolder instead"
                " of the model, so keep checkpoints outside the output folder."
            )
        if child.suffix == ".safetensors" and child not in used:
            raise UnverifiedModelError(
                f"{child} is not one of the model's weight files, but a server that reads every"
                " safetensors file would load it: remove it."
            )


def _tokenizer_gaps(folder: Path) -> list[str]:
    """Return what the tokenizer lacks for a chat. Raises: `UnverifiedModelError` if there is
    none."""
    if not any((folder / name).is_file() for name in _VOCABULARY_FILES) and not any(
        folder.glob("*.tiktoken")
    ):
        raise UnverifiedModelError(f"{folder} holds no tokenizer: save it beside the weights.")
    settings = read_json(folder / "tokenizer_config.json")
    templates = ("chat_template.jinja", "chat_template.json")
    gaps = []
    if not settings.get("chat_template") and not any((folder / n).is_file() for n in templates):
        gaps.append("the tokenizer has no chat template")
    if not special_token(folder, "eos_token"):
        gaps.append("the tokenizer has no end-of-sequence token")
    if not special_token(folder, "pad_token"):
        gaps.append("the tokenizer has no padding token")
    return gaps
