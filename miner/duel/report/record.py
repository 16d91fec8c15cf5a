"""A league as JSON: every game, and what was made of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from miner.duel.league import LeagueResult, Row
from miner.duel.match import MatchResult
from miner.duel.outcome import GameRecord


def league_json(result: LeagueResult, settings: dict[str, Any]) -> dict[str, Any]:
    """All of a league; `settings` say how it was played."""
    return {
        "settings": settings,
        "players": result.players,
        "games": result.games,
        "boss": result.boss,
        "standings": [{"player": name, "score": score} for name, score in result.standings()],
        "advancing": result.advancing(),
        "environment_scores": {game: result.environment_scores(game) for game in result.games},
        "rows": [
            _row(result.row(player, game)) for game in result.games for player in result.players
        ],
        "matches": [_match(match) for match in result.matches],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content`, a list of numbers on one line."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _row(row: Row) -> dict[str, Any]:
    usage = asdict(row.usage) | {"seconds": round(row.usage.seconds, 3)}
    return asdict(row) | {"usage": usage}


def _match(match: MatchResult) -> dict[str, Any]:
    return {
        "game": match.game,
        "first": match.first,
        "second": match.second,
        "stopped": match.stopped,
        "failure": match.failure,
        "seconds": round(match.seconds, 3),
        "games": [_game(record) for record in match.games],
    }


def _game(record: GameRecord) -> dict[str, Any]:
    forfeit = record.forfeit
    return {
        "seed": record.seed,
        "first_seat": record.first_seat,
        "result": record.result,
        "returns": record.returns,
        "forfeit": None if forfeit is None else [forfeit.player, forfeit.cause.value],
        "history": record.history,
    }
