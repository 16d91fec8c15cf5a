"""The report of a run: one page to look at, with its pictures and replays next to it.

Invariant: the page needs no network and no scripts; it can be written while the run continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from miner.config.channel_facts import unused_settings
from miner.config.errors import ConfigurationError
from miner.games import RANDOM
from miner.reporting.figures import NARROW, WIDE, evaluation_figure, learning_curve
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
        by_game=_by_game(table),
        groups=[Markup(svg_of(figure)) for figure in groups],
        replays=[write_replay(folder, name, replay) for name, replay in best_first(run.replays)],
        probe=_probe(run.probe),
        scoring=scoring(run),
        settings=_settings(run),
    )
    path = folder / "report.html"
    path.write_text(page)
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
    (target / f"{name}.html").write_text(replay_html(replay))
    return {
        "name": name,
        "headline": headline(replay),
        "description": description(replay),
        "rounds": replay.rounds,
    }


def table_evaluations(run: Run) -> list[EvaluationRecord]:
    """Evaluations that belong into the table: those made by command, else training's named ones.

    What was done again counts once. Where no trained model was evaluated under a name of its own,
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
    if run.temperature is not None:
        parts.append(f"sampled at temperature {run.temperature:g}")
    channels = ", ".join(sorted({record.channel for record in run.evaluations}))
    if channels and run.of_games:
        parts.append(f"evaluated over {channels}")
    elif channels:
        names = ", ".join(run.environments)
        parts.append(f"environment {names}")
        if names != channels:
            parts.append(f"channel {channels}")
    return " · ".join(parts)


def _by_game(table: Sequence[EvaluationRecord]) -> list[dict[str, str]]:
    """Scores of each game, where an evaluation has played several."""
    return [
        {
            "name": record.name,
            "game": game.rpartition(":")[2].replace("_", " "),
            "score": str(score),
            "episodes": str(score.n),
        }
        for record in table
        for game, score in record.by_game.items()
    ]


def _tiles(run: Run, table: Sequence[EvaluationRecord]) -> list[dict[str, str]]:
    """The few numbers to see first: every score but random play's, then the cost."""
    shown = [record for record in table if record.score and record.name != RANDOM]
    tiles = [_score_tile(record) for record in shown[:_MOST_TILES]]
    if run.steps:
        seconds = sum(record.seconds for record in run.steps)
        episodes = sum(record.episodes for record in run.steps)
        tokens = sum(record.tokens_per_second * record.seconds for record in run.steps)
        tiles.append(
            {
                "label": "training time",
                "value": str(timedelta(seconds=round(seconds))),
                "detail": f"{episodes:,} episodes",
            }
        )
        tiles.append(
            {
                "label": "tokens/s",
                "value": f"{tokens / seconds if seconds else 0:,.0f}",
                "detail": "mean over all steps",
            }
        )
        if (work := work_done(run)) is not None:
            tiles.append(dict(zip(("label", "value", "detail"), work, strict=True)))
    return tiles


def _score_tile(record: EvaluationRecord) -> dict[str, str]:
    score = record.score
    assert score is not None
    name = f"trained, step {record.step}" if record.name == CHECKPOINT else record.name
    detail = f"{score.low:.3f} to {score.high:.3f}, {score.n:,} episodes"
    return {"label": f"{name}, score", "value": f"{score.mean:.3f}", "detail": detail}


def _settings(run: Run) -> list[dict[str, Any]]:
    """Sections with their keys; settings outside of sections come first.

    Settings of other channels than the run's are left out.
    """
    settings = run.settings
    loose = [(key, _shown(value)) for key, value in settings.items() if not isinstance(value, dict)]
    sections = [{"name": "run", "items": loose}] if loose else []
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            kept = _of_channel(value) if name == "environment" else value
            items = [(key, _shown(part)) for key, part in kept.items() if part != ""]
            sections.append({"name": name, "items": items})
    return sections


def _of_channel(environment: dict[str, Any]) -> dict[str, Any]:
    """`environment` without settings that its channel does not read; its channel's table flat."""
    unused = unused_settings(str(environment.get("channel", "auto")))
    flat: dict[str, Any] = {}
    for key, value in environment.items():
        if key in unused:
            continue
        if isinstance(value, dict):
            flat |= {f"{key}.{part}": inner for part, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _probe(report: dict[str, Any]) -> dict[str, Any] | None:
    """The conformance probe's JSON as the page shows it; unknown parts are left out."""
    if not report:
        return None
    channel, reason = report.get("channel", "unknown"), report.get("reason", "")
    servers = report.get("servers")
    return {
        "sentence": f"Channel {channel}: {reason}." if reason else f"Channel {channel}.",
        "notes": report.get("notes", []),
        "servers": [
            _server(server)
            for server in (servers if isinstance(servers, list) else [])
            if isinstance(server, dict)
        ],
    }


def _server(found: dict[str, Any]) -> dict[str, str]:
    rate, latency = found.get("action_applied_rate"), found.get("latency_ms")
    step = "not seen" if rate is None else f"{rate:.0%} of {found.get('step_asked', '?')}"
    equal = found.get("builtin_matches")
    version = found.get("api_version")
    answer = "yes" if latency is None else f"in {latency:.0f} ms"
    return {
        "url": str(found.get("url", "?")),
        "answers": found.get("problem") or answer + (f", API {version}" if version else ""),
        "step": " ".join(filter(None, [step, found.get("step_problem")])),
        "graded": found.get("graded_problem") or f"{found.get('graded_episodes', 0)} played",
        "builtin": "yes" if equal is True else "no" if equal is False else "not known",
    }
