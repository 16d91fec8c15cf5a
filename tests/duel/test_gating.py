"""The gate's matches between real players, and the scores of a summary."""

import asyncio
import signal
from typing import Any

import pytest

from miner.cli.duel_demo import score
from miner.config.contract import TURN_SECONDS
from miner.duel import gating
from miner.duel.gating import play_gate
from miner.duel.outcome import Cause
from miner.duel.play import Rules
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit
from miner.duel.players.catalog import make_player
from miner.duel.turn import Request
from miner.duel.wording import Wording
from miner.environments.errors import InfrastructureError
from miner.evaluation.statistics import mean_score
from tests.commands import miner
from tests.duel.stand_ins import Scripted, interrupting, lowest_call, move
from tests.virtual_time import run_paused


def _drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the gate's matches from now on."""
    seeds: list[int] = []

    def rules(seed: int, wording: Wording, **more: Any) -> Rules:
        seeds.append(seed)
        return Rules(seed, wording, **more)

    monkeypatch.setattr(gating, "Rules", rules)
    return seeds


async def test_a_stronger_player_passes_and_the_weaker_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = _drawn(monkeypatch)
    strong = await play_gate("teacher", "random", ["leduc_poker"], 300)
    assert strong.passed
    assert len(seeds) == len(set(seeds)) > 1, "matches repeat games"
    weak = await play_gate("random", "teacher", ["leduc_poker"], 60)
    assert "leduc_poker" in weak.undecided


def _above(request: Request) -> Reply:
    """In Goofspiel the card above the one that `lowest_call` plays, and in the last round the 1."""
    if request.kind == "reflection":
        return Reply()
    return move(2 if 2 in request.legal else request.legal[:2][-1])


@pytest.mark.parametrize("loser", [0, 1])
async def test_pairs_are_counted_as_played_where_losses_in_a_row_end_matches(
    loser: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = [Scripted("wins", _above), Scripted("wins no game", lowest_call)]
    monkeypatch.setattr(gating, "make_player", lambda named, games, seat: made[seat ^ (not loser)])
    seeds = _drawn(monkeypatch)
    gate = await play_gate("a", "b", ["goofspiel"], 220)
    assert gate.undecided == ([] if loser else ["goofspiel"])
    assert len(seeds) == 44, "of five pairs each"
    assert not caplog.records


class Slow(Scripted):
    """Takes longer for a turn than the tournament allows."""

    async def reply(self, request: Request) -> Reply:
        await asyncio.sleep(2 * TURN_SECONDS)
        return await super().reply(request)


def test_a_slow_machine_is_no_forfeit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Scripted("quick", lowest_call), Slow("slow", lowest_call)]
    monkeypatch.setattr(gating, "make_player", lambda named, games, seat: made[seat])
    gate, _ = run_paused(play_gate("a", "b", ["leduc_poker"], 60))
    assert "forfeits" in gate.undecided, "the start has none"


async def test_too_few_pairs_for_the_bet_on_forfeits_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await play_gate("random", "random", ["leduc_poker", "goofspiel"], 1)
    assert "216 decide, which is --pairs 108" in caplog.text


@pytest.mark.parametrize("number", [1, 2])
async def test_too_few_pairs_leave_it_undecided(number: int) -> None:
    gate = await play_gate("teacher", "random", ["leduc_poker"], 2, number)
    assert not gate.passed


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("moves", [1, 2, 15])
def test_an_interrupt_ends_the_gate(moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pair's first game and in its second one."""
    asked: list[int] = []
    monkeypatch.setattr(gating, "make_player", interrupting(moves, signal.SIGINT, asked))
    miner("gate", "a", "b", "--games", "goofspiel", "--pairs", 200, status=130)
    assert len(asked) < 100


async def test_the_teacher_scores_what_it_is_known_for() -> None:
    teacher = make_player("teacher", ["leduc_poker"])
    scored = await score(teacher, "leduc_poker", None, "random", 100)
    assert scored.score is not None
    assert scored.score.n == 200
    assert scored.score.low > 0.6
    assert not scored.forfeits


async def test_goofspiel_has_the_cards_that_were_asked_for() -> None:
    seen = set()

    def answer(request: Request) -> Reply:
        assert request.kind == "turn"  # nobody would see the notes of a reflection
        seen.add(len(request.legal))
        return lowest_call(request)

    await score(Scripted("lowest", answer), "goofspiel", 8, "random", 3)
    assert max(seen) == 8


async def test_forfeits_are_counted_and_lost() -> None:
    def answer(request: Request) -> Reply:
        raise ReplyForfeit(Cause.NO_CALL, "nothing")

    scored = await score(Scripted("silent", answer), "goofspiel", 5, "bid", 4)
    assert scored.score is not None
    assert scored.forfeits == {"no tool call": 8}
    assert scored.score.n == 8
    assert scored.score.mean == 0
    assert scored.score.high == pytest.approx(mean_score([0.0] * 4).high), "each pair counts once"


async def test_a_player_that_fails_has_no_score() -> None:
    def answer(request: Request) -> Reply:
        raise PlayerError("its server is away")

    with pytest.raises(InfrastructureError, match=r"broke off: .*server is away"):
        await score(Scripted("lost", answer), "leduc_poker", None, "random", 6)
