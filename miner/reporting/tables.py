"""The table to read first: who scored what, with intervals, overall and by deck size."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from miner.evaluation.results import EXCLUDING
from miner.evaluation.statistics import Estimate
from miner.games import GAMES, RANDOM, ReferenceScore
from miner.reporting.records import CHECKPOINT, EvaluationRecord

_LOG = 240  # columns: no table of scores is wider
_NAME, _SHORT_NAME = 16, 8  # columns that are kept for names where there is room, and at least
Column = tuple[str, list[str]]


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One line of the table; `known` marks reference values instead of a measurement."""

    name: str
    score: str
    by_deck_size: dict[int, str]
    difference: str = ""
    without_luck: str = ""
    episodes: str = ""
    invalid: str = ""
    timed_out: str = ""
    excluded: str = ""
    known: bool = False


def score_rows(evaluations: Sequence[EvaluationRecord]) -> list[ScoreRow]:
    """Rows in reading order: random, the measured ones, then known scores, ascending.

    A baseline that was measured takes the place of its known value; of several evaluations of one
    name, split and step the last one counts.
    """
    measured = latest(evaluations)
    sizes = sorted({size for record in measured for size in record.by_deck_size})
    shown = deck_sizes(measured)
    rows = [_measured(record) for record in measured]
    names = {record.name for record in measured}
    known = [
        ScoreRow(
            reference.name,
            f"{reference.mean(sizes):.3f} expected",
            {size: f"{reference.by_deck_size[size]:.3f}" for size in shown},
            known=True,
        )
        for reference in known_scores(measured)
        if reference.name not in names
    ]
    return sorted([*rows, *known], key=lambda row: reading_order(row.name))


def known_scores(evaluations: Sequence[EvaluationRecord]) -> tuple[ReferenceScore, ...]:
    """Known scores of the one game that all evaluations play; none of several, or of others."""
    games = {record.environment for record in evaluations}
    game = GAMES.get(games.pop()) if len(games) == 1 else None
    return game.references if game else ()


def deck_sizes(evaluations: Sequence[EvaluationRecord]) -> list[int]:
    """Deck sizes with a column each; none where a single one is the overall score."""
    sizes = sorted({size for record in evaluations for size in record.by_deck_size})
    return sizes if len(sizes) > 1 else []


def latest(evaluations: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    """Of several evaluations of one name, split and step the last one."""
    return list({(each.name, each.split, each.step): each for each in evaluations}.values())


def reading_order(name: str) -> int:
    """Sort key of policies: random, base, others, then the known good ones.

    What comes after a comma is how the policy was played, and does not count.
    """
    known = [score.name for game in GAMES.values() for score in game.references]
    order = {name: 3 + place for place, name in enumerate(known)} | {RANDOM: 0, "base": 1}
    return order.get(name.partition(", ")[0], 2)


def print_scores(console: Console, evaluations: Sequence[EvaluationRecord]) -> None:
    """Show `score_table`, in a log with all of its columns."""
    if not console.is_terminal:
        console = Console(file=console.file, width=_LOG, quiet=console.quiet)
    console.print(score_table(evaluations, console.width), crop=False)


def score_table(evaluations: Sequence[EvaluationRecord], width: int) -> Table:
    """A table for a terminal of `width` columns, in which names fold and numbers never do: narrow
    ones get no columns for deck sizes, then intervals below their means.

    Known values are dim. Columns in which nothing happened are left out.
    """
    rows = score_rows(evaluations)
    sizes = deck_sizes(evaluations)
    columns: list[Column] = [
        ("score [95% interval]", [row.score for row in rows]),
        ("against base", [row.difference for row in rows]),
        ("without luck", [row.without_luck for row in rows]),
        ("n", [row.episodes for row in rows]),
        *((f"{size} cards", [row.by_deck_size.get(size, "") for row in rows]) for size in sizes),
        ("invalid", [row.invalid for row in rows]),
        ("timed out", [row.timed_out for row in rows]),
        ("excluded", [row.excluded for row in rows]),
    ]
    quiet = {"", "0"}
    remarkable = ("against base", "without luck", "timed out", "excluded")
    columns = [
        column
        for column in columns
        if column[0] not in remarkable or not quiet.issuperset(column[1])
    ]
    room = width - min(_NAME, max((len(row.name) for row in rows), default=0))
    if _room(columns) > room:
        columns = [column for column in columns if not column[0].endswith("cards")]
    if _room(columns) > room:
        columns = [
            (_folded(heading), [_folded(cell) for cell in cells]) for heading, cells in columns
        ]
    least = _room(columns) + _SHORT_NAME
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.width = least if least > width else None
    table.add_column("policy", overflow="fold")
    for heading, _ in columns:
        table.add_column(_literal(heading), justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        cells = [_literal(column[index]) for _, column in columns]
        table.add_row(_literal(row.name), *cells, style="dim" if row.known else None)
    return table


def _room(columns: Sequence[Column]) -> int:
    """Width of columns with the gap before each, and of the table's margins."""
    texts = ("\n".join((heading, *cells)) for heading, cells in columns)
    return 2 + sum(2 + max(map(len, text.splitlines())) for text in texts)


def evaluation_tables(record: EvaluationRecord) -> list[Table]:
    """One evaluation in detail: by deck size and by seat, each with its interval."""
    tables = []
    if record.by_deck_size:
        tables.append(_interval_table("deck size", record.by_deck_size))
    if record.by_seat:
        tables.append(_interval_table("player", record.by_seat))
    return tables


def _interval_table(key: str, groups: dict[int, Estimate]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in (key, "episodes", "score", "95% interval"):
        table.add_column(name, justify="right")
    for value, part in groups.items():
        table.add_row(
            str(value), str(part.n), f"{part.mean:.3f}", f"{part.low:.3f} to {part.high:.3f}"
        )
    return table


def _folded(cell: str) -> str:
    return cell.replace(" [", "\n[").replace(" of ", "\nof ")


def _literal(text: str) -> str:
    """`text` with its brackets shown, not read as rich's markup."""
    return text.replace("[", "\\[")


def _measured(record: EvaluationRecord) -> ScoreRow:
    name = f"checkpoint {record.step}" if record.name == CHECKPOINT else record.name
    invalid = record.parse_failures + record.illegal_replies
    gain, score = record.difference, record.score
    fewer = f" of {gain.n}" if gain and score and gain.n != score.n else ""
    return ScoreRow(
        name=name,
        score=str(score) if score else "none counted",
        difference=gain.signed + fewer if gain else "",
        without_luck=str(record.without_luck or ""),
        episodes=str(score.n) if score else "0",
        by_deck_size={size: f"{part.mean:.3f}" for size, part in record.by_deck_size.items()},
        invalid=f"{invalid / record.replies:.1%}" if invalid else "0",
        timed_out=str(record.failures.get("timeout", 0)),
        excluded=str(sum(record.failures.get(kind, 0) for kind in EXCLUDING)),
    )
