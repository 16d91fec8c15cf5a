"""Players without a model, and what a person may type for one."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pyspiel
import pytest
from open_spiel.python.algorithms import mcts

from miner.config.errors import ConfigurationError
from miner.duel.match import Limits, play_match
from miner.duel.memory import Notes, WordCounter
from miner.duel.play import Rules
from miner.duel.players.catalog import chosen_games, make_player, named
from miner.duel.players.rival import rival_move
from miner.duel.players.rules import RulePlayer, bid_the_prize, random_move
from miner.duel.players.search import equilibrium, search
from miner.duel.table import Table
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.environments.games.opponents import MctsOpponent
from miner.games import GAMES
from tests.duel.golden import stuck_game

RANDOM = RulePlayer("random", random_move(7))
RULES = Rules(11, own_wording())


async def _score(player: RulePlayer, game: str, pairs: int) -> float:
    limits = Limits(seconds=1e9, pairs=pairs)
    match = await play_match(GAMES[game], player, RANDOM, RULES, limits)
    assert match.failure is None
    return (match.count("win") + match.count("draw") / 2) / len(match.games)


@pytest.mark.parametrize("game", GAMES)
async def test_random_players_play_every_game_to_its_end(game: str) -> None:
    other = RulePlayer("other", random_move(8))
    match = await play_match(GAMES[game], other, RANDOM, RULES, Limits(seconds=1e9, pairs=2))
    again = await play_match(GAMES[game], other, RANDOM, RULES, Limits(seconds=1e9, pairs=2))
    assert match.failure is None
    assert [record.forfeit for record in match.games] == [None] * 4
    assert [r.history for r in match.games] == [r.history for r in again.games]


async def test_bidding_the_prize_beats_random_bids() -> None:
    assert (
        await _score(RulePlayer("bid", bid_the_prize), "goofspiel", 25) > 0.8
    )  # known: .89 to .97


@pytest.mark.parametrize(
    ("game", "least"),
    [("leduc_poker", 0.74), ("goofspiel", 0.85), ("liars_dice", 0.93)],
)
async def test_a_rival_beats_random_moves_by_its_rule(game: str, least: float) -> None:
    assert await _score(RulePlayer("rival", rival_move), game, pairs=25) > least


def _won(state: pyspiel.State) -> bool:
    """True if who has just moved wins now, or by their next move whatever the other does."""
    children = [state.child(reply) for reply in state.legal_actions()]
    return all(
        any(child.child(move).is_terminal() for move in child.legal_actions()) for child in children
    )


def test_a_rival_wins_clobber_where_it_is_about_to_be_won() -> None:
    won = 0
    for seed in range(20):
        table = Table(GAMES["clobber"], seed)
        while legal := table.state.legal_actions():
            winning = [move for move in legal if table.state.child(move).is_terminal()]
            if winning:
                notes, player = Notes(WordCounter()), table.state.current_player()
                request = Request(table, player, notes, own_wording(), legal=legal)
                assert _won(table.state.child(rival_move(request)))
                won += len(winning) < len(legal)
            table.apply(legal[-1])
    assert won


async def test_a_search_beats_random_moves() -> None:
    assert await _score(RulePlayer("mcts", search(20)), "clobber", 10) > 0.65


async def test_the_equilibrium_does_not_lose_at_leduc() -> None:
    assert await _score(RulePlayer("cfr", equilibrium(20)), "leduc_poker", 100) > 0.5


def _slow_to_search(table: Table) -> bool:
    """Gin rummy with eight cards is searched in Python."""
    return table.loaded.get_parameters()["hand_size"] == 8 and len(table.state.legal_actions()) > 1


@pytest.mark.parametrize("game", ["leduc_poker", "gin_rummy"])
async def test_a_search_without_a_waiting_caller_ends(
    game: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the iteration or the simulation that it is at."""
    asked, cancelled, begun = 0, threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits(*_: object) -> float:
        nonlocal asked
        asked += 1
        loop.call_soon_threadsafe(begun.set)
        assert cancelled.wait(60)
        return 0.0

    monkeypatch.setattr(
        pyspiel, "CFRPlusSolver", lambda game: SimpleNamespace(evaluate_and_update_policy=waits)
    )
    monkeypatch.setattr(mcts.RandomRolloutEvaluator, "evaluate", waits)
    choose = equilibrium(7) if game == "leduc_poker" else search(7)
    tables = (Table(GAMES[game], seed) for seed in range(100))
    table = next(t for t in tables if game == "leduc_poker" or _slow_to_search(t))
    request = Request(
        *(table, table.state.current_player(), Notes(WordCounter()), own_wording()),
        legal=table.state.legal_actions(),
    )
    task = asyncio.create_task(RulePlayer("slow", choose, quick=False).reply(request))
    await begun.wait()
    [thread] = [each for each in threading.enumerate() if each.name == "move"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert asked == 1


def test_a_search_survives_the_position_that_has_no_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = stuck_game(monkeypatch)
    table = Table(GAMES["gin_rummy"], line["seed"])
    for action in line["scripted_player_actions"][:-1]:
        table.apply(action)
    legal = table.state.legal_actions()
    assert 55 in legal  # the knock after which nobody can move
    request = Request(table, 0, Notes(WordCounter()), own_wording(), legal=legal)
    assert search(500)(request) in legal
    assert MctsOpponent(table.loaded, 7, 500, 10).act(table.state, 0) in legal  # on servers


def test_specifications_name_players() -> None:
    assert make_player("random", list(GAMES)).name == "random"
    assert make_player("weak=mcts:3", list(GAMES)).name == "weak"
    endpoint = make_player("e=http://127.0.0.1:1/v1#m", ["othello"])
    assert endpoint.name == "e"
    assert make_player("http://127.0.0.1:1/v1#m", ["othello"]).name == "m"


@pytest.mark.parametrize(
    ("specification", "name", "player"),
    [
        ("a=runs/lr=1e-4/out", "a", "runs/lr=1e-4/out"),
        ("a=http://h/v1?key=x", "a", "http://h/v1?key=x"),
        ("http://h/v1?key=x", "", "http://h/v1?key=x"),
        ("runs/lr=1e-4/out", "", "runs/lr=1e-4/out"),
        ("lr=1", "", "lr=1"),
        ("random", "", "random"),
    ],
)
def test_paths_and_urls_may_hold_an_equals_sign(
    specification: str, name: str, player: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr=1").mkdir()
    assert named(specification) == (name, player)


@pytest.mark.parametrize(
    ("specification", "games", "said"),
    [
        ("nobody", ["othello"], "neither a folder nor a player"),
        ("mcts:x", ["othello"], "not a number"),
        ("mcts:0", ["othello"], "not a number"),
        ("rival:7", ["othello"], "rival takes no number"),
        ("no.such.module:play", ["othello"], "'no.such.module:play' cannot be imported"),
        ("mcts:100000000", ["othello"], "at most 10,000"),
        ("cfr:10001", ["leduc_poker"], "at most 10,000"),
        ("bid", ["othello", "goofspiel"], "plays goofspiel only"),
        ("cfr", ["othello"], "plays leduc_poker only"),
    ],
)
def test_what_is_not_a_player_is_reported(specification: str, games: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_player(specification, games)


def test_games_are_chosen_by_name() -> None:
    assert chosen_games(None) == list(GAMES)
    assert chosen_games("othello, clobber,othello,") == ["othello", "clobber"]
    for listed in ("chess", ","):
        with pytest.raises(ConfigurationError, match=f"'{listed}' is not a game"):
            chosen_games(listed)
