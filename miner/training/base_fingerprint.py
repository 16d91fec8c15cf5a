"""What a base model is, in digests, so that a run notices another one at the same path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from miner.publishing.base_files import companions
from miner.publishing.structure import weight_files

BLOCK = 1 << 20
BLOCKS = 16


def base_fingerprint(base: Path) -> dict[str, str]:
    """SHA-256 by file name: of configuration, tokenizer and template, and of the weights' samples.

    A weight file gives its size and 16 blocks of 1 MiB, evenly spread from its first byte (where
    safetensors keeps names and shapes) to its last; a smaller one all of itself. So large models
    cost little, and other shapes, another dtype and weights that were trained on are noticed, also
    where embeddings and norms at the file's ends stayed (merged adapters). A change that lies
    between the blocks is not, such as one edited row of one tensor.
    Raises: `OSError`; `UnverifiedModelError` if the index of the weight files cannot be used.
    """
    digests = {file.name: _digest([file.read_bytes()]) for file in companions(base)}
    for file in weight_files(base) or sorted(base.glob("*.bin")):
        digests[file.name] = _digest(_samples(file))
    return digests


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    yield size.to_bytes(8)
    with file.open("rb") as stream:
        if size <= BLOCK * BLOCKS:
            yield stream.read()
            return
        for number in range(BLOCKS):
            stream.seek(number * (size - BLOCK) // (BLOCKS - 1))
            yield stream.read(BLOCK)


def _digest(parts: Iterator[bytes] | list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
