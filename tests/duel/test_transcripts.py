"""Whole matches as the tournament's own code played them: every state, note, call and result."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from miner.duel.memory import MEMORY_TOOLS, Notes, WordCounter
from miner.duel.outcome import GameRecord
from miner.duel.play import Rules, play_game
from miner.duel.players.base import Reply
from miner.duel.table import Table, configuration_of, game_seeds
from miner.duel.tournament_files import read_wording
from miner.duel.turn import Request
from miner.duel.wording import Wording, own_wording
from miner.games import GAMES as BY_NAME
from tests.duel.golden import GAMES, Line, digest, golden, needs_transcripts, transcript
from tests.duel.make_extract import without_descriptions
from tests.duel.stand_ins import Scripted, calls, move, tournament_copy


class _Transcript:
    """Both players: answers as recorded, after a look at what is asked."""

    def __init__(self, recorded: list[Any]) -> None:
        self.left: Iterator[Any] = iter(recorded)
        self.bodies: set[str] = set()

    def answer(self, request: Request) -> Reply:
        player, kind, notes, shown, replies, action = next(self.left)
        assert (request.player, request.kind) == (player, kind)
        assert digest(request.notes.render()) == notes
        text = request.user if kind == "turn" else request.table.text(player)
        assert digest(text) == shown, text
        self.bodies.add(json.dumps(request.body("scripted-a")))
        return move(action) if replies is None else calls(*replies)

    async def play(self, line: Line, notes: Sequence[Notes], wording: Wording) -> GameRecord:
        players = Scripted("a", self.answer), Scripted("b", self.answer)
        seat, rules = line["model_a_player_id"], Rules(line["eval_base_seed"], wording)
        game = BY_NAME[line["env"]]
        return await play_game(game, line["seed"], players, notes, rules, first_seat=seat)


@pytest.mark.parametrize("name", GAMES)
async def test_matches_are_played_as_the_tournament_plays_them(name: str) -> None:
    notes = (Notes(WordCounter()), Notes(WordCounter()))
    recorded = golden(f"games_{name}")
    for line in recorded:
        script = _Transcript(line["calls"])
        record = await script.play(line, notes, own_wording())
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
        assert line["is_zero_sum"]
        assert table.loaded.min_utility() == line["min_utility"] == -line["max_utility"]
        assert table.loaded.max_utility() == line["max_utility"]


def test_tools_have_the_tournaments_names_order_and_schemas() -> None:
    table = Table(BY_NAME["leduc_poker"], golden("games_leduc_poker")[0]["seed"])
    legal = table.state.legal_actions()
    tools = Request(table, 0, Notes(WordCounter()), own_wording(), legal=legal).tools
    for kind, ours in (("pvp_turn", tools), ("pvp_reflection", tools[:4])):
        recorded = [line["tool"] for line in golden("tools") if line["set"] == kind]
        assert json.dumps(without_descriptions(ours)) == json.dumps(recorded)
    assert [tool["function"]["name"] for tool in tools[:4]] == list(MEMORY_TOOLS)


@needs_transcripts
async def test_requests_equal_the_tournaments_with_a_copy_of_its_files(tmp_path: Path) -> None:
    wording = read_wording(tournament_copy(tmp_path))
    lines = transcript("raw_requests")
    asked: set[str] = set()
    for name in {line["env"] for line in lines}:
        notes = (Notes(WordCounter()), Notes(WordCounter()))
        for game in golden(f"games_{name}"):
            script = _Transcript(game["calls"])
            await script.play(game, notes, wording)
            asked |= script.bodies
    assert len(lines) == 12
    for line in lines:
        assert json.dumps(line["request"]) in asked, line
