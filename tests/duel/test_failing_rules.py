"""Teachers and other rules that raise, or take too long: they lose rows and games, and no run."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import duel_task
from miner.duel.memory import WordCounter
from miner.duel.teachers import TEACHERS, Seen, best, liars_dice, teacher_of
from miner.duel.teachers.goofspiel import GoofspielTeacher
from miner.duel.teachers.leduc_poker import LeducTeacher
from miner.duel.values import DuelValues
from miner.duel.wording import own_wording
from miner.environments.errors import InfrastructureError
from tests.duel.stand_ins import asked


def raises(error: Exception) -> Callable[..., Any]:
    def called(*_: object) -> Any:
        raise error

    return called


BROKEN = raises(ValueError("no such card"))


def source(game: str, notes: float = 0.0) -> DuelSource:
    return DuelSource(
        Opponents([game]), own_wording(), family="qwen25", counter=WordCounter(), notes=notes
    )


@pytest.mark.parametrize("opponent", ["teacher", "rival"])
async def test_a_rule_that_raises_is_an_episode_lost_and_no_score(
    monkeypatch: pytest.MonkeyPatch, opponent: str
) -> None:
    monkeypatch.setattr(LeducTeacher, "values", BROKEN)
    monkeypatch.setattr("miner.duel.players.catalog.rival_move", BROKEN)
    duel = source("leduc_poker").open()
    with pytest.raises(InfrastructureError, match=f"{opponent} failed: in leduc_poker: ValueErr"):
        await duel.reset(duel_task("leduc_poker", 5, 1, opponent))


async def test_a_game_before_whose_teacher_raises_leaves_no_notes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GoofspielTeacher, "move", BROKEN)
    duel = source("goofspiel", notes=1.0).open()
    shown = await duel.reset(duel_task("goofspiel", 5, 0, "random"))
    assert shown.messages[0]["content"].count("(empty)") == 12
    await duel.reset(duel_task("goofspiel", 6, 0, "random"))
    said = "no notes of games before goofspiel: in goofspiel: ValueError: no such card (test_fail"
    assert caplog.text.count(said) == 1


def test_a_critic_that_raises_values_nothing_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    critic, task = DuelValues("qwen25"), duel_task("leduc_poker", 5, 0, "random")
    shown = asked("leduc_poker").messages
    assert critic.values(shown, task)
    monkeypatch.setattr(LeducTeacher, "values", BROKEN)
    with caplog.at_level(logging.WARNING):
        assert critic.values(shown, task) == critic.values(shown, task) == {}
    said = "no credit for a turn: ValueError: no such card (test_failing_rules.py, line"
    assert caplog.text.count(said) == 1
    users = DuelValues("qwen25", raises(ConfigurationError("write it otherwise")))
    with pytest.raises(ConfigurationError, match="otherwise"):
        users.values(shown, task)


def test_liars_dice_that_cannot_be_solved_is_taught_by_the_odds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(liars_dice._Solver, "solve", raises(MemoryError()))
    seen = Seen.of(asked("liars_dice"))
    values = liars_dice.LiarsDiceTeacher(sweeps=-2).values(seen)
    assert values.keys() == seen.actions.keys()
    assert best(values) == liars_dice.by_the_odds(*liars_dice.read_turn(seen))
    assert "taught by the odds, not solved: MemoryError()" in caplog.text


def test_liars_dice_is_solved_as_far_as_time_allows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The strategies so far have to do: those of one sweep where there is time for no second."""
    once = liars_dice._Solver().solve(1)
    assert not caplog.text
    monkeypatch.setattr(liars_dice, "MOST_SECONDS", -1.0)
    assert (liars_dice._Solver().solve(3) == once).all()
    assert "Liar's dice: 1 of 3 sweeps in time" in caplog.text


async def test_a_game_without_a_teacher_is_played_without_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(TEACHERS, "goofspiel")
    duel = source("goofspiel", notes=1.0).open()
    assert (await duel.reset(duel_task("goofspiel", 5, 0, "random"))).messages


def test_a_game_without_a_teacher_names_the_place_for_one() -> None:
    with pytest.raises(LookupError, match=r"nim has no teacher: add one to TEACHERS in"):
        teacher_of("nim")
