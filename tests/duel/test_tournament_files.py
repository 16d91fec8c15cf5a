"""The tournament's sentences are read from a copy of its files; nothing of a copy is run."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from miner import games
from miner.cli.duel_demo import score
from miner.config.errors import ConfigurationError
from miner.duel.players.base import Reply
from miner.duel.tiny_base.build import DuelRecipe, build_duel_base, content_key
from miner.duel.tournament_files import read_wording, wording_of
from miner.duel.turn import Request
from miner.duel.wording import OWN
from miner.recorded.intercode_form import FILE as EVALUATOR_FILE
from miner.recorded.intercode_form import read_words
from miner.rollout.base_templates import FILES, FOLDER, base_template
from tests.commands import miner
from tests.duel.golden import GAMES
from tests.duel.stand_ins import Scripted, lowest_call, write_copy
from tests.recorded.made import EVALUATOR


def _tool(description: str, **properties: str) -> dict:
    described = {name: {"description": text} for name, text in properties.items()}
    return {"description": description, "parameters": {"properties": described}}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    memory = {
        f"{area}_{edit}": _tool(f"{verb} a {area} slot (slots 1-{n}; {use}); {end}.", **_SLOT)
        for area, n, use in (("working_memory", 4, "now"), ("long_term_memory", 8, "ever"))
        for edit, verb, end in (("rewrite", "Set", "all goes"), ("append", "Grow", "old goes"))
    }
    move = _tool("Go on. Ids that count: 1, 2.", action_id="One id.")
    write_copy(
        tmp_path / "copy",
        {f"{game}_rules": f"Rules of {game}." for game in GAMES},
        {"turn": "One answer — then all.", "reflection": "Think."},
        ("Over. Yours: ", "Note it."),
        memory | {"game_action": move},
    )
    return tmp_path / "copy"


_SLOT = {"slot": "Which.", "content": "What."}


def test_every_sentence_comes_from_the_copy(copy: Path) -> None:
    wording = read_wording(copy)
    assert wording.heads["othello"] == "Rules of othello."
    assert wording.turn_tail == "One answer — then all."
    assert wording.reflection_tail == "Think."
    assert wording.reflection == ("Over. Yours: ", ".\n\nFinal state:\n", "\n\nNote it.")
    assert wording.tools.memory[3] == ("Grow a long_term_memory slot (slots 1-8; ever); old goes.")
    assert wording.tools.move == ("Go on. Ids that count: ", ".")
    assert (wording.tools.slot, wording.tools.content) == ("Which.", "What.")
    assert wording.tools.action_id == "One id."
    assert not wording.is_own


def test_a_game_of_the_users_has_its_own_rules_in_their_form(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        games.GAMES, "nim", replace(games.OTHELLO, name="nim", rules="Take the last.")
    )
    assert read_wording(copy).heads["nim"] == "Take the last."
    with (copy / "core/pvp/game_prompts.yml").open("a") as prompts:
        prompts.write("nim_rules: Theirs.\n")
    assert read_wording(copy).heads["nim"] == "Theirs."


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("core/pvp/bot.py", ("_TOOL_GUIDANCE", "_OTHER"), "_TOOL_GUIDANCE"),
        ("core/pvp/tools.py", ("{effect}", "{outcome}"), "build_memory_tools"),
        ("core/pvp/game_prompts.yml", ("othello_rules", "chess_rules"), "othello_rules"),
        ("core/pvp/game_prompts.yml", ("{rules}", "{rules"), "file of prompts"),
        ("core/models/pvp_models.py", ("action_id", "action"), "action_id"),
    ],
)
def test_files_of_another_form_are_named(
    copy: Path, file: str, change: tuple[str, str], said: str
) -> None:
    path = copy / file
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_wording(copy)
    assert Path(file).name in str(caught.value)


def test_the_command_copies_what_it_read(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert wording_of(None).source == OWN
    (copy / FOLDER).mkdir(parents=True)
    (copy / FOLDER / FILES[0]).write_text("of the validator")
    assert base_template("gemma4") != base_template("gemma4", copy / FOLDER)
    (copy / EVALUATOR_FILE).parent.mkdir(parents=True)
    (copy / EVALUATOR_FILE).write_text(EVALUATOR)
    lines = miner("prompts", "--from", copy).splitlines()
    for name in FILES:
        (line,) = [line for line in lines if Path(line.partition(": ")[0]).name == name]
        assert ("not found" in line) is (name != FILES[0])
    for path in copy.rglob("*.*"):
        if path.is_file():
            assert (work / "tournament" / path.relative_to(copy)).read_bytes() == path.read_bytes()
    assert wording_of(None).heads == read_wording(copy).heads
    assert read_words.__wrapped__() == read_words(copy)
    found = base_template("gemma4")
    assert found is not None
    assert found[0] == "of the validator"


def test_the_duels_demo_makes_its_base_of_the_copy_and_scores_with_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = DuelRecipe(games=1, steps=1, batch=1)
    key = content_key(recipe)
    copy.rename("tournament")
    assert content_key(recipe) != key
    base = build_duel_base(tmp_path / "base", recipe=recipe)
    tokens = AutoTokenizer.from_pretrained(base).tokenize("Rules of goofspiel.")
    assert len(tokens) == 1
    shown: list[str] = []

    def lowest(request: Request) -> Reply:
        shown.append(request.system)
        return lowest_call(request)

    asyncio.run(score(Scripted("asked", lowest), "leduc_poker", None, "random", pairs=1))
    assert {text.partition("\n")[0] for text in shown} == {"Rules of leduc_poker."}


def test_a_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"core/pvp/game_prompts\.yml: copy that file"):
        read_wording(tmp_path)


def test_a_folder_that_only_the_image_has_made_is_not_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tournament").mkdir()
    (tmp_path / "tournament" / "README.md").write_text("of this repository")
    monkeypatch.chdir(tmp_path)
    assert wording_of(None).source == OWN
