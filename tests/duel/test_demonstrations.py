"""Demonstrations: teachers' moves as replies, and teachers' values by reply."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random

import pytest

import miner.duel.demonstrations as demonstrations
from miner.duel.calls import FORMS, parse_calls
from miner.duel.channel.tasks import duel_task
from miner.duel.demonstrations import MOST_NOTES, MOST_TURNS, Demonstration, Style, demonstrate
from miner.duel.memory import Notes, WordCounter
from miner.duel.table import Table
from miner.duel.teachers import TEACHERS, Seen, teacher_of
from miner.duel.teachers.liars_dice import LiarsDiceTeacher
from miner.duel.tools import MOVE, move_of, offered_tools, reflection_tools
from miner.duel.turn import Request
from miner.duel.values import DuelValues, note_text
from miner.duel.wording import own_wording
from miner.environments.base import Message
from miner.games import GAMES


@pytest.fixture(autouse=True)
def hardly_solved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Values are compared with themselves: solving Liar's dice well takes seconds."""
    monkeypatch.setitem(TEACHERS, "liars_dice", partial(LiarsDiceTeacher, sweeps=1))
    teacher_of.cache_clear()
    yield
    teacher_of.cache_clear()


def _style(family: str = "qwen25", notes: float = 0.0) -> Style:
    return Style(own_wording(), WordCounter(), family, notes)


_OFFERED = {MOVE: {"action_id": {"type": "integer"}}}


def _made(game: str, style: Style, games: int = 3) -> list[Demonstration]:
    rng = Random(4)
    tasks = [duel_task(game, seed, seed % 2, "random") for seed in range(games)]
    return [turn for task in tasks for turn in demonstrate(task, style, rng)]


def _best(turn: Demonstration) -> str:
    return max(turn.values, key=turn.values.__getitem__)


def _played(family: str, reply: str, seen: Seen) -> int | None:
    """The move of a reply, as the engine reads it."""
    (call,) = parse_calls(family, reply, {MOVE: {"properties": {"action_id": {"type": "integer"}}}})
    return move_of(call.decoded(), list(seen.actions))


@pytest.mark.parametrize("game", GAMES)
def test_the_best_reply_is_the_teachers_move_for_what_the_prompt_shows(game: str) -> None:
    for turn in _made(game, _style()):
        seen = Seen.read(turn.messages[1]["content"])
        assert seen is not None
        assert _played("qwen25", _best(turn), seen) == teacher_of(game).move(seen)


def _read(turn: Demonstration) -> Seen | None:
    system, user = (message["content"] for message in turn.messages)
    return Seen.read(user, system)


@pytest.mark.parametrize("family", FORMS)
def test_replies_are_written_in_the_models_own_form(family: str) -> None:
    for turn in _made("leduc_poker", _style(family)):
        seen = Seen.read(turn.messages[1]["content"])
        assert seen is not None
        assert _played(family, _best(turn), seen) is not None


@pytest.mark.parametrize("game", GAMES)
def test_a_user_message_is_read_as_what_the_player_sees(game: str) -> None:
    table = Table(GAMES[game], 9)
    player, legal = table.state.current_player(), table.state.legal_actions()
    notes = Notes(WordCounter())
    notes.long_term.edit("rewrite", 3, "They wait.\nAnd then?")
    notes.working.edit("rewrite", 1, "of this game")
    request = Request(table, player, notes, own_wording(), legal=legal)
    seen = Seen.of(request)
    assert Seen.read(request.user, request.system) == seen
    assert seen.notes == ("They wait.",)


def test_what_is_not_a_turn_is_not_read() -> None:
    assert Seen.read("This game has ended. Your result: WIN") is None
    hello: Message = {"role": "user", "content": "hello"}
    assert DuelValues("qwen25").values([hello], duel_task("clobber", 1, 0, "random")) is None


def test_equal_numbers_give_equal_turns_and_long_games_no_more_than_others() -> None:
    assert _made("goofspiel", _style()) == _made("goofspiel", _style())
    assert len(_made("gin_rummy", _style(), games=2)) == 2 * MOST_TURNS


def test_sides_of_rivals_make_no_random_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "RIVALS", 1.0)
    monkeypatch.setattr(demonstrations, "ABOVE", 0.0)
    monkeypatch.setattr(demonstrations, "ERRORS", (1.0,))
    states = [turn.messages[1]["content"] for turn in _made("goofspiel", _style())]
    rounds = [line.split()[2:] for s in states for line in s.splitlines() if "Win seq" in line]
    assert len(max(rounds, key=len)) > 3
    assert all(set(winners) <= {"-3"} for winners in rounds)


def _noted(turn: Demonstration) -> bool:
    return turn.messages[0]["content"].count("(empty)") < 12


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_notes_of_other_games_are_in_their_share_of_prompts(share: float) -> None:
    assert any(map(_noted, _made("liars_dice", _style(notes=share), 8))) == bool(share)


def test_fewer_prompts_have_notes_where_the_teacher_writes_none() -> None:
    def noted(game: str) -> int:
        """Tasks of 40 with a prompt that has notes."""
        rng, tasks = Random(1), [duel_task(game, seed, 0, "random") for seed in range(40)]
        made = [demonstrate(task, _style(notes=1.0), rng) for task in tasks]
        return sum(any(_noted(turn) for turn in turns) for turns in made)

    assert 0 < noted("leduc_poker") < noted("goofspiel") / 2


def test_notes_on_an_opponent_are_written_after_a_game_and_shown_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demonstrations, "NOTED_ERRORS", (0.0,))
    monkeypatch.setattr(demonstrations, "MOST_TURNS", 1000)
    turns = _made("goofspiel", _style(notes=1.0), 12)
    after = [turn for turn in turns if Seen.read(turn.messages[1]["content"]) is None]
    written = {
        call.decoded()["content"]
        for turn in after
        for reply in turn.values
        for call in parse_calls("qwen25", reply, offered_tools(turn.tools))
    }
    assert written <= set(teacher_of("goofspiel").notes)
    assert "They bid the prize." in written
    assert all(len(turn.values) == 1 for turn in after)
    shown = {note for turn in turns if (seen := _read(turn)) is not None for note in seen.notes}
    assert "They bid the prize." in shown


def test_replies_that_write_a_note_are_among_the_few_turns_of_each_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demonstrations, "NOTED_ERRORS", (0.0,))
    for seed in range(5):
        task = duel_task("goofspiel", seed, 0, "random")
        turns = demonstrate(task, _style(notes=1.0), Random(seed))
        written = [note_text("qwen25", note) for note in teacher_of("goofspiel").notes]
        assert len(turns) == MOST_TURNS
        assert sum(turn.is_note for turn in turns) == MOST_NOTES
        assert all(turn.is_note == (set(turn.values) <= set(written)) for turn in turns)


def test_games_between_rivals_teach_the_note_that_their_ties_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demonstrations, "RIVALS", 1.0)
    monkeypatch.setattr(demonstrations, "ABOVE", 0.0)
    monkeypatch.setattr(demonstrations, "NOTED_ERRORS", (1.0,))
    turns = _made("goofspiel", _style(notes=1.0), 4)
    written = [reply for turn in turns if turn.is_note for reply in turn.values]
    assert set(written) == {note_text("qwen25", "They bid the prize.")}
    monkeypatch.setattr(demonstrations, "ABOVE", 0.5)
    turns = _made("goofspiel", _style(notes=1.0), 16)
    written = [reply for turn in turns if turn.is_note for reply in turn.values]
    assert note_text("qwen25", "They bid one above the prize.") in written


@pytest.mark.parametrize("family", FORMS)
def test_notes_are_written_in_the_models_own_form(family: str) -> None:
    offered = offered_tools(reflection_tools(own_wording()))
    for note in teacher_of("goofspiel").notes:
        (call,) = parse_calls(family, note_text(family, note), offered)
        notes = Notes(WordCounter())
        notes.call(call.name, call.decoded())
        assert notes.long_term.texts[0] == note


def test_a_teacher_without_notes_ends_a_game_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "NOTED_ERRORS", (0.0,))
    turns = _made("leduc_poker", _style(notes=1.0), 6)
    assert any(turn.values == {"": 1.0} for turn in turns)


@pytest.mark.parametrize("game", GAMES)
def test_every_legal_reply_has_a_value_and_the_taught_one_the_highest(game: str) -> None:
    critic, task = DuelValues("hermes"), duel_task(game, 1, 0, "random")
    for turn in _made(game, _style("hermes"), games=1):
        user = turn.messages[1]["content"]
        seen, values = Seen.read(user), critic.values(turn.messages, task)
        assert seen is not None
        assert values is not None
        assert [_played("hermes", reply, seen) for reply in values] == list(seen.actions)
        assert values == turn.values


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("game", GAMES)
def test_a_named_reply_is_the_listed_words_and_then_the_same_call(game: str, family: str) -> None:
    style = replace(_style(family), named=True)
    critic, task = DuelValues(family, named=True), duel_task(game, 1, 0, "random")
    for turn in _made(game, style, games=1):
        user = turn.messages[1]["content"]
        seen = Seen.read(user)
        assert seen is not None
        assert critic.values(turn.messages, task) == turn.values, (
            "credit and demonstrations have equal replies"
        )
        for reply, (action, listed) in zip(turn.values, seen.actions.items(), strict=True):
            (call,) = parse_calls(family, reply, _OFFERED)
            assert move_of(call.decoded(), list(seen.actions)) == action
            words, _, _ = reply.partition("\n")
            assert listed in (words, f"[P{seen.player}]{words}")
            assert not words.startswith("[")


def test_without_names_a_reply_begins_with_its_call() -> None:
    for family in FORMS:
        for turn in _made("goofspiel", _style(family), games=1):
            assert not any("Bid" in reply for reply in turn.values)
