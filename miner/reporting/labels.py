"""Labels that distinguish evaluations in one table and one picture."""

from __future__ import annotations

from collections.abc import Sequence

from miner.reporting.records import EvaluationRecord


def distinct_name(record: EvaluationRecord, earlier: Sequence[EvaluationRecord]) -> str:
    """The record's name, with how it was played where an earlier one of that name was not so.

    What counts is the channel, the temperature and the deck sizes. The same evaluation done again
    gets the same name again, so that it replaces its older self. Training's own evaluations, which
    have a step, are of other episodes and come into no table with these.

    Args:
        earlier: evaluations in the same folder.
    """
    namesakes = [other for other in earlier if other.name == record.name and other.step is None]
    if not namesakes:
        return record.name
    ours, theirs = _way(record), _way(namesakes[-1])
    return ", ".join(
        [record.name, *(way for way, other in zip(ours, theirs, strict=True) if way != other)]
    )


def played_alike(record: EvaluationRecord, other: EvaluationRecord) -> bool:
    """Return whether two scores may be subtracted, as far as their episodes are the same."""
    return _way(record)[:2] == _way(other)[:2]


def _way(record: EvaluationRecord) -> tuple[str, str, str]:
    temperature = 0.0 if record.temperature is None else record.temperature
    cards = "+".join(map(str, sorted(record.by_deck_size)))
    return f"over {record.channel}", f"temperature {temperature:g}", f"{cards} cards"
