"""A miner's own teacher and opponent: examples, where they act, and what is wrong with others."""

import json
from pathlib import Path
from random import Random

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.channel.tasks import duel_task
from miner.duel.demonstrations import Style, demonstrate
from miner.duel.memory import WordCounter
from miner.duel.own import chosen_by, taught_by
from miner.duel.players.catalog import make_player
from miner.duel.players.rival import rival_move
from miner.duel.teachers import Seen, best, taught_values
from miner.duel.values import DuelValues
from miner.duel.wording import own_wording
from miner.games import GAMES
from miner.rewards.own_credit import load_credit
from tests.commands import refusal
from tests.duel.stand_ins import asked

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_duels.py")
VALUES = {"Fold": 0.1, "Call": 0.5, "Raise": 0.6}


def test_the_example_teaches_its_game_and_leaves_others_to_the_teachers() -> None:
    taught = taught_by(f"{EXAMPLE}:teach")
    leduc, othello = Seen.of(asked("leduc_poker")), Seen.of(asked("othello"))
    expected = {action: VALUES[label] for action, label in leduc.actions.items()}
    assert taught("leduc_poker", leduc) == expected != taught_values("leduc_poker", leduc)
    assert taught("othello", othello) == taught_values("othello", othello)


@pytest.mark.parametrize("game", GAMES)
def test_the_example_imitates_the_rival_in_each_game(game: str) -> None:
    request = asked(game)
    values = taught_by(f"{EXAMPLE}:imitate")(game, Seen.of(request))
    assert best(values) == rival_move(request)
    assert sorted(values.values())[-2:] == [0.5, 0.6]


def test_demonstrations_and_credit_have_the_own_teachers_values() -> None:
    taught = taught_by(EXAMPLE)  # :teach is meant
    style = Style(own_wording(), WordCounter(), "qwen25", 0.0, taught)
    task = duel_task("leduc_poker", 7, 0, "random")
    made = demonstrate(task, style, Random(0))
    critic = DuelValues("qwen25", taught)
    assert made
    for demonstration in made:
        assert set(demonstration.values.values()) <= set(VALUES.values())
        assert critic.values(demonstration.messages, task) == demonstration.values


async def test_the_example_plays_every_game() -> None:
    player = make_player(f"mine={EXAMPLE}:play", list(GAMES))
    assert player.name == "mine"
    for game, label in (("leduc_poker", "Raise"), ("othello", None)):
        request = asked(game)
        (call,) = (await player.reply(request)).calls
        action = call.decoded()["action_id"]
        assert action in request.legal
        assert label in (None, request.table.label(0, action))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return {0: 1.0}", r"teacher .* returned \{0: 1.0\} in leduc_poker: expected a chance"),
        ("return dict.fromkeys(seen.actions, float('nan'))", "expected a chance to win, 0 to 1"),
        ("return dict.fromkeys(seen.actions, '0.5')", "expected a chance to win, 0 to 1"),
        ("return dict.fromkeys(seen.actions, -1.0)", "expected a chance to win, 0 to 1"),
        ("return dict.fromkeys(seen.actions, 40)", "expected a chance to win, 0 to 1"),
        ("raise SystemExit", r"SystemExit: .*line 2"),
        ("return seen.points", r"AttributeError: .*line 2"),
    ],
)
def test_what_is_wrong_with_a_teacher_is_one_sentence(
    tmp_path: Path, body: str, sentence: str
) -> None:
    file = tmp_path / "idea.py"
    file.write_text(f"def teach(game, seen):\n    {body}\n")
    with pytest.raises(ConfigurationError, match=sentence):
        taught_by(str(file))("leduc_poker", Seen.of(asked("leduc_poker")))


@pytest.mark.parametrize("arguments", ["", "game, seen, notes"])
def test_a_function_of_other_arguments_is_refused_before_it_is_called(
    tmp_path: Path, arguments: str
) -> None:
    file = tmp_path / "idea.py"
    file.write_text(f"def mine({arguments}):\n    return 1\n")
    for make in (taught_by, chosen_by):
        with pytest.raises(ConfigurationError, match=r"write def mine\(game, seen\)"):
            make(f"{file}:mine")
    with pytest.raises(ConfigurationError, match=r"reward\.entry .* write def mine\(group\)"):
        load_credit(f"{file}:mine")


def test_functions_whose_arguments_are_not_known_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "idea.py"
    file.write_text(
        "import functools\n\n\ndef more(game, seen, model): return 1\n\n\n"
        "@functools.wraps(more)\ndef play(game, seen): return more(game, seen, None)\n\n\n"
        "own = max\ncached = functools.cache(play)\n"
    )
    for name in ("play", "own", "cached"):
        assert chosen_by(f"{file}:{name}")


def test_a_teacher_that_is_not_there_is_reported_by_its_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"demonstrations\.teacher"):
        taught_by("no/such/file.py:teach")


@pytest.mark.parametrize("command", ["duel", "league"])
def test_an_opponent_that_raises_ends_the_command_and_is_named(
    tmp_path: Path, command: str
) -> None:
    file = tmp_path / "idea.py"
    file.write_text("def play(game, seen):\n    return seen.points\n")
    words = [command, f"{file}:play", "mcts:50", "--games", "clobber,leduc_poker", "--pairs", "2"]
    found = refusal(*words, "--out", str(tmp_path / "out"))
    assert f"opponent '{file}:play' raised AttributeError" in found
    assert "idea.py, line 2" in found
    assert not (tmp_path / "out").exists()


def test_a_late_mistake_of_an_opponent_loses_no_game_that_was_played(tmp_path: Path) -> None:
    file = tmp_path / "idea.py"
    file.write_text(
        "calls = []\n\n\ndef play(game, seen):\n    calls.append(game)\n"
        "    return min(seen.actions) if len(calls) < 12 else seen.points\n"
    )
    words = ["league", f"{file}:play", "a=random", "b=random", "--games", "leduc_poker"]
    found = refusal(*words, "--pairs", "1000", "--out", str(tmp_path / "out"))
    assert "raised AttributeError" in found
    written = json.loads((tmp_path / "out" / "league.json").read_text())
    by_players = {(m["first"], m["second"]): m for m in written["matches"]}
    assert 0 < len(by_players["a", "b"]["games"]) < 2000, "interrupted, and kept"
    assert written["standings"]


@pytest.mark.parametrize("action", ["99", "[0, 1]", "1.5", "__import__('numpy').arange(2)"])
async def test_an_opponent_must_name_a_legal_action(tmp_path: Path, action: str) -> None:
    file = tmp_path / "idea.py"
    file.write_text(f"def play(game, seen):\n    return {action}\n")
    with pytest.raises(ConfigurationError, match=r"opponent .* returned .* in leduc_poker"):
        await make_player(f"{file}:play", ["leduc_poker"]).reply(asked("leduc_poker"))
    with pytest.raises(ConfigurationError, match="no function 'other'"):
        make_player(f"{file}:other", ["leduc_poker"])
    with pytest.raises(ConfigurationError, match="there is no file"):
        make_player(f"{tmp_path}/away.py:play", ["leduc_poker"])
