"""Whole matches as the tournament's own code played them: every state, note, call and result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from miner.duel.games import GAMES as BY_NAME
from miner.duel.games import Table
from miner.duel.games.table import configuration_of, game_seeds
from miner.duel.memory import Notes, WordCounter
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Reply
from miner.duel.tournament_files import read_wording
from miner.duel.turn import Request
from miner.duel.wording import MEMORY_TOOLS, Wording, own_wording
from tests.duel.golden import (
    GAMES,
    digest,
    golden,
    needs_transcripts,
    transcript,
)
from tests.duel.make_extract import without_descriptions
from tests.duel.stand_ins import Scripted, calls, move, tournament_copy


class _Transcript:
    """Answers as recorded, after a look at what is asked."""

    def __init__(self, recorded: list[Any]) -> None:
        self.left: Iterator[Any] = iter(recorded)

    def answer(self, request: Request) -> Reply:
        player, kind, notes, shown, replies, action = next(self.left)
        assert (request.player, request.kind) == (player, kind)
        assert digest(request.notes.render()) == notes
        text = request.user if kind == "turn" else request.table.text(player)
        assert digest(text) == shown, text
        return move(action) if replies is None else calls(*replies)


@pytest.mark.parametrize("name", GAMES)
async def test_matches_are_played_as_the_tournament_plays_them(name: str) -> None:
    game = BY_NAME[name]
    notes = (Notes(WordCounter()), Notes(WordCounter()))
    recorded = golden(f"games_{name}")
    for line in recorded:
        script = _Transcript(line["calls"])
        a, b = Scripted("a", script.answer), Scripted("b", script.answer)
        seat, rules = line["model_a_player_id"], Rules(line["eval_base_seed"], own_wording())
        record = await play_game(game, line["seed"], (a, b), notes, rules, first_seat=seat)
        assert next(script.left, None) is None
        assert record.history == line["history"]
        assert record.returns == line["returns"]
        assert record.result == line["outcome_model_a"]
        assert record.forfeit is None
    assert len(recorded) == 16


@pytest.mark.parametrize("name", GAMES)
def test_seeds_draw_the_configuration_and_the_opening(name: str) -> None:
    recorded = golden(f"games_{name}")
    seeds = game_seeds(recorded[0]["eval_base_seed"])
    for line in recorded[::2]:
        assert next(seeds) == line["seed"]
        table = Table(BY_NAME[name], line["seed"])
        assert configuration_of(table.game, line["seed"]) == line["config_id"]
        assert str(table.loaded) == line["game_string"]
        assert table.opening == line["opening_actions"]
        assert line["is_zero_sum"]  # which results are told by
        assert table.loaded.min_utility() == line["min_utility"]
        assert table.loaded.max_utility() == line["max_utility"]


def test_tools_have_the_tournaments_names_order_and_schemas() -> None:
    lines = [line for line in golden("tools") if line["set"] != "intercode"]
    request = _request(own_wording())
    for kind, tools in (("pvp_turn", request.tools), ("pvp_reflection", request.tools[:4])):
        expected = [line["tool"] for line in lines if line["set"] == kind]
        assert _ordered(without_descriptions(tools)) == _ordered(expected)
    assert [tool["function"]["name"] for tool in request.tools[:4]] == list(MEMORY_TOOLS)


@needs_transcripts
def test_requests_equal_the_tournaments_with_a_copy_of_its_files(tmp_path: Path) -> None:
    wording = read_wording(tournament_copy(tmp_path))
    lines = transcript("raw_requests")
    for line in lines:
        game = next(g for g in golden(f"games_{line['env']}") if g["seed"] == line["seed"])
        request = _recorded_request(game, line, wording)
        assert _ordered(request.body("scripted-a")) == _ordered(line["request"])
    assert len(lines) == 12


def _recorded_request(game: dict, line: dict, wording: Wording) -> Request:
    """The request of one line: the first turn of a seat, or its reflection."""
    table = Table(BY_NAME[line["env"]], line["seed"])
    notes = Notes(WordCounter())
    content = line["request"]["messages"][0]["content"]
    for number, text in enumerate(_noted(content), 1):
        if text:
            notes.call("working_memory_rewrite", {"slot": number, "content": text})
    if line["kind"] == "turn":
        return Request(
            table,
            line["player"],
            notes,
            wording,
            legal=table.state.legal_actions(),
            seed=game["eval_base_seed"],
        )
    user = line["request"]["messages"][1]["content"]
    result = next(word for word in ("win", "loss", "draw") if f": {word.upper()}." in user)
    for game in golden(f"games_{line['env']}"):
        if game["seed"] != line["seed"]:
            continue
        table = Table(BY_NAME[line["env"]], line["seed"])
        for _, kind, _, _, _, action in game["calls"]:
            if kind == "turn":
                table.apply(action)
        if table.text(line["player"]) in user:
            break
    return Request(
        table, line["player"], notes, wording, result=result, seed=game["eval_base_seed"]
    )


def _noted(system: str) -> list[str]:
    """Texts of the working memory's slots in a system message."""
    block = system.split("WORKING_MEMORY", 1)[1].split("\n\n", 1)[0]
    texts = [row.split("] ", 1)[1] for row in block.splitlines()[1:]]
    return ["" if text == "(empty)" else text for text in texts]


def _request(wording: Wording) -> Request:
    """The first turn of the recorded Leduc game."""
    line = golden("games_leduc_poker")[0]
    table = Table(BY_NAME["leduc_poker"], line["seed"])
    return Request(
        table, 0, Notes(WordCounter()), wording, legal=table.state.legal_actions(), seed=1
    )


def _ordered(value: Any) -> Any:
    """`value` with the order of its keys made part of it."""
    if isinstance(value, dict):
        return [(key, _ordered(entry)) for key, entry in value.items()]
    return [_ordered(entry) for entry in value] if isinstance(value, list) else value
