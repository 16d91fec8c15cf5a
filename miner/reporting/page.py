"""The report of a run: one page to look at, with its pictures and replays next to it.

Invariant: the page needs no network and no scripts; it can be written while the run continues.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from miner.config.errors import ConfigurationError
from miner.config.run_files import write_atomically
from miner.config.settings import used_toml
from miner.games import RANDOM
from miner.reporting.figures import NARROW, WIDE, evaluation_figure, learning_curve
from miner.reporting.progress import duration
from miner.reporting.records import (
    CHECKPOINT,
    EvaluationRecord,
    Replay,
)
from miner.reporting.replay_page import description, headline, replay_html
from miner.reporting.run_folder import Run, RunFolder
from miner.reporting.run_warnings import alarms, notes
from miner.reporting.style import save_figure, svg_of
from miner.reporting.summary import (
    held_out_curve,
    scoring,
    steps_done,
    subject,
    token_rate,
    trained_sizes,
    verdict,
    work_done,
)
from miner.reporting.tables import deck_sizes, latest, reading_order, score_rows
from miner.reporting.templates import render

_MOST_TILES = 6


def write_report(folder: Path) -> Path:
    """Write `report.html`, its figures (PNG and SVG) and the replays' pages into a run's folder.

    Returns the page's path.
    Raises: `ConfigurationError` when the folder holds no records, or broken ones.
    """
    run = RunFolder(folder).read()
    if run.empty:
        raise ConfigurationError(
            f"{folder} holds no records of a run: expected metrics.jsonl, evaluations.jsonl or "
            "replays/*.json, as training and evaluation write them"
        )
    curves, groups = [], []
    if run.steps or any(record.step is not None for record in run.evaluations):
        curves = [
            learning_curve(run.steps, held_out_curve(run), sizes=trained_sizes(run), size=size)
            for size in (WIDE, NARROW)
        ]
        _save(curves[0], folder / "learning_curve")
    table = table_evaluations(run)
    if grouped := [record for record in table if record.score and record.by_seat]:
        groups = [evaluation_figure(grouped, size=size) for size in (WIDE, NARROW)]
        _save(groups[0], folder / "evaluation")
    page = render(
        "report.html.j2",
        run=run,
        subtitle=_subtitle(run),
        tiles=_tiles(run, table),
        subject=subject(run) if run.steps and "environment" in run.settings else "",
        verdict=verdict(run) if run.steps else "",
        alarms=alarms(run),
        notes=notes(run),
        curves=[Markup(svg_of(figure)) for figure in curves],
        rows=score_rows(table) if table else [],
        sizes=deck_sizes(table),
        by_game=[record for record in table if record.by_game or record.by_opponent],
        opponents=sorted(
            {o for record in table for met in record.by_opponent.values() for o in met}
        ),
        groups=[Markup(svg_of(figure)) for figure in groups],
        replays=[write_replay(folder, name, replay) for name, replay in best_first(run.replays)],
        probe=run.probe,
        scoring=scoring(run),
        settings=used_toml(run.settings) if run.settings else "",
    )
    path = folder / "report.html"
    write_atomically(path, page)
    return path


def _save(figure: Figure, stem: Path) -> None:
    for suffix in (".png", ".svg"):
        save_figure(figure, stem.with_suffix(suffix))


def best_first(replays: Mapping[str, Replay]) -> list[tuple[str, Replay]]:
    """Replays by score, episodes without one last; equal scores by name."""
    return sorted(
        replays.items(),
        key=lambda item: -1.0 if item[1].score is None else item[1].score,
        reverse=True,
    )


def write_replay(folder: Path, name: str, replay: Replay) -> dict[str, Any]:
    """Write `replays/{name}.html` into a run's folder; returns what a link shows."""
    target = folder / "replays"
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / f"{name}.html", replay_html(replay))
    return {
        "name": name,
        "headline": headline(replay),
        "description": description(replay),
    }


def table_evaluations(run: Run) -> list[EvaluationRecord]:
    """Evaluations that belong into the table: those made by command, else training's named ones.

    What was done again counts once. Where no trained model was evaluated under a separate name,
    the checkpoint that was published last takes its place.
    """
    named = [record for record in run.evaluations if record.name != CHECKPOINT]
    chosen = [record for record in named if record.step is None] or named
    checkpoints = [record for record in run.evaluations if record.name == CHECKPOINT]
    if checkpoints and all(record.step is not None for record in chosen):
        published = [record for record in checkpoints if record.published]
        chosen = [*chosen, (published or checkpoints)[-1]]
    return sorted(latest(chosen), key=lambda record: reading_order(record.name))


def _subtitle(run: Run) -> str:
    parts = []
    if run.steps:
        last = run.steps[-1]
        parts.append(steps_done(run))
        parts.append(f"last one {datetime.fromtimestamp(last.time, UTC):%Y-%m-%d %H:%M} UTC")
    channels = ", ".join(sorted({record.channel for record in run.evaluations}))
    if channels and run.of_games:
        parts.append(f"evaluated over {channels}")
    elif channels:
        names = ", ".join(run.environments)
        parts.append(f"environment {names}")
        if names != channels:
            parts.append(f"channel {channels}")
    return " · ".join(parts)


def _tiles(run: Run, table: Sequence[EvaluationRecord]) -> list[tuple[str, str, str]]:
    """Label, value and detail of the numbers to see first: every score but random play's, then the
    cost."""
    shown = [record for record in table if record.score and record.name != RANDOM]
    tiles = [_score_tile(record) for record in shown[:_MOST_TILES]]
    if run.steps:
        seconds = sum(record.seconds for record in run.steps)
        episodes = sum(record.episodes for record in run.steps)
        played = f", {episodes:,} episodes" if episodes else ""
        tiles.append(("time in steps", duration(seconds), f"without evaluations{played}"))
        if rate := token_rate(run.steps):
            tiles.append(("tokens/s", rate, "of whole episodes, prompts included"))
        if (work := work_done(run)) is not None:
            tiles.append(work)
    return tiles


def _score_tile(record: EvaluationRecord) -> tuple[str, str, str]:
    score = record.score
    assert score is not None
    name = f"trained, step {record.step}" if record.name == CHECKPOINT else record.name
    detail = f"{score.low:.3f} to {score.high:.3f}, {score.n:,} episodes"
    return f"{name}, score", f"{score.mean:.3f}", detail
