"""Records of mounted data sets: jsonl, json and parquet files of any size.

A place is a part of a file that can be read alone: a stretch of a jsonl file, a row group of a
parquet file, a whole json file. Places come in an order drawn by a constant seed, and of a set that
is larger than wanted each gives as large a part, so that what is read stands for the whole.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

logger = logging.getLogger(__name__)

STRETCH_BYTES = 1 << 16
"""Of a jsonl file at least: some records."""
LONGEST_LINE = 1 << 26
LARGEST_ARRAY = 1 << 30
"""Bytes of a json file, which can only be read as a whole."""
LOOKS, LONGEST_LOOK = 64, 1 << 20
"""Lines of a jsonl file by whose lengths, in bytes, their number is estimated."""
BATCH = 16
"""Rows of a parquet file that are decoded at once."""
DECODED = 10
"""Rows of a row group that are decoded at most for each that is wanted: the others cost as much."""


@dataclass(frozen=True)
class Place:
    """A part of a file.

    Attributes:
        records: as many as it has, about.
        read: reads so many of them at most; None stands for a record that is not JSON. Raises: what
            the format's reader does.
    """

    file: Path
    records: float
    read: Callable[[int], Iterator[Any]]


def files_of(folder: Path) -> list[Path]:
    """Those that records are read of, in order."""
    return [file for file in sorted(folder.rglob("*")) if file.suffix in _PLACES]


def some_records(folder: Path, most: int, left_out: Counter[str]) -> Iterator[Any]:
    """At most so many records of the files in a folder, from all places alike; all if there seem to
    be fewer.

    Args:
        left_out: counts what cannot be read, by reason.
    """
    files = files_of(folder)
    if not files:
        left_out[f"no jsonl, json or parquet file in {folder.name}"] += 1
    places: list[Place] = []
    for file in files:
        try:
            places += _PLACES[file.suffix](file, max(1, most // len(files)))
        except Exception as error:  # pyarrow, the file system: each has its own errors
            _unread(file, error, left_out)
    part = most / max(1.0, sum(place.records for place in places))
    for place in Random(0).sample(places, len(places)):
        wanted = most if part >= 1 else max(1, round(part * place.records))
        try:
            for record in islice(place.read(wanted), most):
                yield record
                most -= 1
        except Exception as error:
            _unread(place.file, error, left_out)


def _unread(file: Path, error: Exception, left_out: Counter[str]) -> None:
    left_out[f"{file.name} cannot be read"] += 1
    logger.warning("%s cannot be read to its end: %s", file, str(error)[:200])


def _lines(file: Path, most: int) -> list[Place]:
    """Of a jsonl file; a line belongs to the stretch in which it begins.

    Args:
        most: places.
    """
    size = file.stat().st_size
    count = min(most, 1 + size // STRETCH_BYTES)
    bounds = [size * place // count for place in range(count + 1)]

    def read(start: int, end: int, most: int) -> Iterator[Any]:
        with file.open("rb") as opened:
            if start:
                opened.seek(start - 1)
                opened.readline(end - start + 1)
            while most > 0 and opened.tell() < end:
                if line := opened.readline(LONGEST_LINE).strip():
                    yield _parsed(line)
                    most -= 1

    usual = _usual_line(file, size)
    return [
        Place(file, (end - start) / usual, partial(read, start, end))
        for start, end in pairwise(bounds)
    ]


def _usual_line(file: Path, size: int) -> float:
    """Mean bytes of some lines."""
    with file.open("rb") as opened:
        lengths = []
        for look in range(LOOKS):
            opened.seek(size * look // LOOKS)
            if look:
                opened.readline(LONGEST_LOOK)
            lengths.append(len(opened.readline(LONGEST_LOOK)))
    return fmean(filter(None, lengths)) if any(lengths) else 1.0


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _array(file: Path, most: int) -> list[Place]:
    """Of a json file: a list of records, or lines all the same."""
    with file.open("rb") as opened:
        if not opened.read(1024).lstrip().startswith(b"["):
            return _lines(file, most)
    if file.stat().st_size > LARGEST_ARRAY:
        raise ValueError(f"a JSON list of over {LARGEST_ARRAY:,} bytes; write jsonl instead")

    def read(most: int) -> Iterator[Any]:
        records = json.loads(file.read_bytes())
        yield from Random(0).sample(records, min(most, len(records)))

    return [Place(file, len(json.loads(file.read_bytes())), read)]


def _row_groups(file: Path, most: int) -> list[Place]:
    """Of a parquet file."""
    from pyarrow.parquet import ParquetFile  # takes a second

    about = ParquetFile(file).metadata
    sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]

    def read(group: int, rows: int, most: int) -> Iterator[Any]:
        count = min(most, rows)
        looked = min(rows, DECODED * count)
        wanted = {looked * number // count for number in range(count)}
        opened = ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        at = 0
        for batch in opened.iter_batches(BATCH, row_groups=[group]):
            for row in range(len(batch)):
                if at + row in wanted:
                    yield _without_nulls(batch.slice(row, 1).to_pylist()[0])
            at += len(batch)
            if at >= looked:
                return

    groups = Random(0).sample(range(len(sizes)), min(most, len(sizes)))
    return [
        Place(file, sizes[group], partial(read, group, sizes[group]))
        for group in groups
        if sizes[group]
    ]


def _without_nulls(value: Any) -> Any:
    """A parquet file gives each object the members of all others in its column, as nulls."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


_PLACES: Mapping[str, Callable[[Path, int], list[Place]]] = {
    ".jsonl": _lines,
    ".json": _array,
    ".parquet": _row_groups,
}
