"""A league from the command line to the page, and what it does about players that fail."""

import asyncio
import io
import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from miner.__main__ import app
from miner.config.errors import ConfigurationError
from miner.config.statuses import TrainerStatus
from miner.duel import session
from miner.duel.channel.tasks import size_of
from miner.duel.league import LeagueResult, play_league
from miner.duel.match import Limits, MatchResult
from miner.duel.outcome import GameRecord, Usage
from miner.duel.play import Rules
from miner.duel.players.base import Reply
from miner.duel.players.rules import RulePlayer, bid_the_prize, random_move
from miner.duel.report.figure import league_figure
from miner.duel.report.page import league_page
from miner.duel.report.scenes import frames
from miner.duel.report.tables import print_league
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.environments.errors import InfrastructureError
from miner.games import GAMES
from tests.commands import miner, refusal
from tests.duel.stand_ins import Scripted, calls, interrupting, move

RULES = Rules(3, own_wording(), keep_plies=True)


def _takes_notes(request: Request) -> Reply:
    if request.kind == "reflection":
        return calls(("long_term_memory_append", '{"slot": 1, "content": "seen <b>once</b>"}'))
    note = ("working_memory_rewrite", '{"slot": 2, "content": "here"}')
    return Reply([*calls(note).calls, *move(request.legal[0]).calls], "I think so.")


async def test_a_player_that_fails_breaks_off_its_own_matches_alone() -> None:
    def fails(request: Request) -> Reply:
        raise OSError("the disk is full")

    players = [
        RulePlayer("a", random_move(1)),
        Scripted("broken", fails),
        RulePlayer("b", random_move(2)),
        Scripted("silent", lambda request: Reply()),
    ]
    result = await play_league(players, ["clobber", "othello"], RULES, Limits(pairs=2))
    failed = {(m.first, m.second) for m in result.matches if m.failure}
    assert failed == {("a", "broken"), ("broken", "b"), ("broken", "silent")}
    for match in result.matches:
        if match.second == "silent" and match.failure is None:
            assert [record.forfeiter for record in match.games] == [1] * 4
    assert set(result.row("silent", "othello").forfeits) == {"no tool call"}
    assert result.row("a", "othello").wins >= 4
    assert result.row("broken", "othello").score is None  # a win before it failed is left out
    assert set(result.advancing()) <= {"a", "b"}


async def test_a_mistake_of_the_users_interrupts_the_league() -> None:
    def fails(request: Request) -> Reply:
        raise ConfigurationError("your play raised AttributeError")

    players = [RulePlayer("a", random_move(1)), RulePlayer("b", random_move(2))]
    players = [*players, Scripted("mine", fails)]
    result = await play_league(players, ["othello"], RULES, Limits(pairs=99))
    assert "your play raised AttributeError" in {m.failure for m in result.matches if m.refused}
    assert result.interrupted
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_game_that_was_not_played_is_in_no_rank() -> None:
    bid = RulePlayer("b", bid_the_prize)  # fails in other games
    players = [RulePlayer("a", lambda request: request.legal[0]), bid]
    result = await play_league(players, ["othello", "goofspiel"], RULES, Limits(pairs=2))
    assert result.played == ["goofspiel"]
    assert result.task_scores() == {"a": 0.0, "b": 1.0}
    assert result.to_json({})["environment_scores"].keys() == {"goofspiel"}
    console = Console(file=io.StringIO(), width=100)
    print_league(result, console)
    assert re.search(r"\n +b +1\.000 +- +1\.000 ", console.file.getvalue())
    assert '<td>b<td class="num best">1.000\n<td class="num">-<' in league_page(result, {}, 0)


async def test_of_a_league_in_which_nothing_counts_no_player_advances() -> None:
    def fails(request: Request) -> int:
        raise OSError("the disk is full")

    players = [RulePlayer("a", fails), RulePlayer("b", random_move(1))]
    result = await play_league(players, ["clobber"], RULES, Limits(pairs=1))
    assert result.advancing() == []
    assert "No player would advance: no match counts." in league_page(result, {}, 0)


async def test_pairs_of_games_that_are_copies_count_once() -> None:
    def middle(request: Request) -> int:
        return request.legal[len(request.legal) // 2]

    players = [RulePlayer("bid", bid_the_prize), RulePlayer("middle", middle)]
    result = await play_league(players, ["goofspiel"], RULES, Limits(pairs=8))
    row = result.row("middle", "goofspiel")
    whole, seat = row.score, row.by_seat[0]
    assert 0 < whole.mean < 1
    assert (whole.n, seat.n) == (16, 8)
    assert (whole.low, whole.high) == pytest.approx((seat.low, seat.high))


async def test_a_league_without_a_game_is_an_error_and_no_standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request: Request) -> Reply:
        raise OSError("nobody serves there")

    monkeypatch.setattr(
        session, "make_player", lambda said, games, *, seat: Scripted(f"{said} {seat}", fails)
    )
    limits, out = Limits(seconds=60.0, pairs=1), tmp_path / "out"
    with pytest.raises(InfrastructureError, match=r"not one game was played: .*nobody serves"):
        await session.run_session(
            ["a", "b"], "clobber", limits, 1, prompts=None, replays=0, out=out
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moves", [1, 60])
def test_an_interrupt_keeps_the_games_that_were_over(
    moves: int, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(session, "make_player", interrupting(moves, number, asked))
    command = ["league", "a", "b", "--games", "clobber,liars_dice", "--pairs", "500"]
    said = miner(*command, "--out", tmp_path / "out", status=TrainerStatus.INTERRUPTED)
    league = json.loads((tmp_path / "out" / "league.json").read_text())
    played = sum(len(match["games"]) for match in league["matches"])
    assert 0 < played < 50
    assert f"interrupted: {played} games were over" in said
    assert {match["stopped"] for match in league["matches"]} == {"interrupted"}


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_no_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search or a function of the user's may take minutes, or never return."""
    released, ended = threading.Event(), threading.Event()

    def thinks(request: Request) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        released.wait(60)
        ended.set()
        return request.legal[0]

    def make(said: str, games: object, *, seat: int) -> RulePlayer:
        return RulePlayer(said, thinks, quick=False) if seat else RulePlayer(said, random_move(0))

    monkeypatch.setattr(session, "make_player", make)
    command = ["league", "a", "b", "--games", "clobber", "--pairs", "5"]
    miner(*command, "--out", tmp_path / "out", status=TrainerStatus.INTERRUPTED)
    assert not ended.is_set(), "it was waited for"
    released.set()


async def test_matches_of_a_league_overlap() -> None:
    asked: list[int] = []
    everybody = asyncio.Event()

    class Waits(Scripted):
        async def reply(self, request: Request) -> Reply:
            asked.append(1)
            if len(asked) == 6:  # three pairs in two games: every match has asked once
                everybody.set()
            await everybody.wait()
            return await super().reply(request)

    def lowest(request: Request) -> Reply:
        return Reply() if request.kind == "reflection" else move(request.legal[0])

    players = [Waits(name, lowest) for name in "abc"]
    result = await play_league(players, ["clobber", "liars_dice"], RULES, Limits(pairs=1))
    assert sum(len(match.games) for match in result.matches) == 12


async def test_notes_on_one_opponent_are_not_shown_to_another() -> None:
    seen: dict[str, set[str]] = {"b": set(), "c": set()}

    def answer(name: str):
        def reply(request: Request) -> Reply:
            if request.kind == "reflection":
                content = json.dumps({"slot": 1, "content": f"by {name}"})
                return calls(("long_term_memory_append", content))
            if name in seen:
                seen[name].add(request.notes.long_term.texts[0])
            return move(request.legal[0])

        return reply

    players = [Scripted(name, answer(name)) for name in "abc"]
    await play_league(players, ["liars_dice"], RULES, Limits(pairs=1))
    assert seen == {"b": {"", "by b"}, "c": {"", "by c"}}


@pytest.mark.parametrize("game", GAMES)
async def test_every_move_of_a_replay_has_a_scene(game: str) -> None:
    players = [Scripted("notes", _takes_notes), RulePlayer("random", random_move(1))]
    result = await play_league(players, [game], RULES, Limits(pairs=1))
    for record in result.matches[0].games:
        shown = frames(record)
        assert len(shown) == len(record.plies) + 1
        for frame in shown:
            assert frame.get("board") or frame["rows"]
        mine = [frame for frame in shown if frame.get("mover") == record.first_seat]
        assert mine[-1]["said"] == "I think so."
        assert mine[-1]["notes"][1] == "here"


async def test_a_forfeit_ends_on_the_reply_that_forfeited() -> None:
    players = [Scripted("a", lambda request: move(77)), RulePlayer("random", random_move(1))]
    result = await play_league(players, ["goofspiel"], RULES, Limits(pairs=1))
    record = next(each for each in result.matches[0].games if each.first_seat == 1)
    last = frames(record)[-1]
    assert len(frames(record)) == len(record.plies) + 2
    assert (last["mover"], last["move"]) == (1, "no legal move (illegal action)")
    assert "77" in last["said"]


async def test_scenes_show_what_is_on_the_table() -> None:
    players = [RulePlayer(name, random_move(i)) for i, name in enumerate("ab")]
    games = ["goofspiel", "othello", "liars_dice"]
    result = await play_league(players, games, RULES, Limits(pairs=1))
    goofspiel, othello, dice = (frames(match.games[0])[-1] for match in result.matches)
    record = result.matches[0].games[0]
    points = [int(part) for part in dict(goofspiel["facts"])["points"].split(" : ")]
    assert (points[0] > points[1]) - (points[0] < points[1]) == record.returns[0]
    assert len(goofspiel["rounds"]) == len(goofspiel["rows"][1]["items"])
    discs = sum(cell in "xo" for row in othello["board"]["cells"] for cell in row)
    assert discs == sum(count for _, count in othello["facts"])
    assert [len(row["items"]) for row in dice["rows"]] == [5, 5]


def test_the_command_plays_prints_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["league", "random", "mcts:3", "other=random", "--games", "clobber,leduc_poker"]
    assert "would advance" in miner(*words, "--pairs", 2, "--out", out)
    written = json.loads((out / "league.json").read_text())
    assert len(written["matches"]) == 6
    games = [game for match in written["matches"] for game in match["games"]]
    assert len(games) == 24
    assert all("history" in game and "plies" not in game for game in games)
    for row in written["rows"]:
        assert row["wins"] + row["draws"] + row["losses"] == 8
        assert row["score"]["low"] <= row["score"]["mean"] <= row["score"]["high"]
    assert (out / "league.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "league.html").read_text()
    assert "<svg" in page
    assert "Replays" in page


async def test_a_page_holds_no_code_of_a_players(tmp_path: Path) -> None:
    players = [Scripted("<i>", _takes_notes), RulePlayer("b", random_move(1))]
    result = await play_league(players, ["clobber"], RULES, Limits(pairs=1))
    plies = result.matches[0].games[0].plies
    plies[0] = replace(plies[0], content="</script><script>alert(1)")
    page = league_page(result, {}, 2)
    assert "</script><script>" not in page
    assert "<i>" not in page.partition("<script>")[0]  # after it, texts stay texts


async def test_a_league_wants_names_that_differ() -> None:
    players = [RulePlayer("a", random_move(1)), RulePlayer("a", random_move(2))]
    with pytest.raises(ConfigurationError, match="NAME="):
        await play_league(players, ["clobber"], RULES, Limits(pairs=1))
    with pytest.raises(ConfigurationError, match="boss"):
        await play_league(players[:1], ["clobber"], RULES, Limits(pairs=1), boss="z")


def test_chosen_deck_sizes_are_played_and_others_refused(tmp_path: Path) -> None:
    words = ["duel", "a=random", "b=random", "--games", "goofspiel", "--pairs", "3"]
    words += ["--out", str(tmp_path / "out"), "--sizes"]
    miner(*words, "5")
    found = json.loads((tmp_path / "out" / "league.json").read_text())
    seeds = {game["seed"] for match in found["matches"] for game in match["games"]}
    assert {size_of("goofspiel", seed) for seed in seeds} == {5}
    assert "sizes: 5, 4x5, 5x5, 5x6" in (tmp_path / "out" / "league.html").read_text()
    assert "--sizes 9: duels have the sizes 5, 8" in refusal(*words, "5,9")


def test_a_long_match_reports_its_progress_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LINE_EVERY_S", -1.0)
    words = ["duel", "a=random", "b=random", "--games", "clobber", "--pairs", "1"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert "clobber: a against b: 1 of 2 games" in done.stdout


def test_a_boss_that_is_not_beaten_lets_no_player_advance() -> None:
    usage = Usage(), Usage()
    won = GameRecord("othello", 1, 0, [], [1.0, -1.0], "win", None, usage)  # by the first
    match = MatchResult("othello", "boss", "a", [won])
    assert LeagueResult(["boss", "a"], ["othello"], [match]).advancing() == ["boss"]
    assert LeagueResult(["boss", "a"], ["othello"], [match], boss="boss").advancing() == []


async def test_the_picture_of_a_league_has_each_player_in_its_color(tmp_path: Path) -> None:
    players = [RulePlayer(name, random_move(seat)) for seat, name in enumerate("abc")]
    result = await play_league(players, ["clobber", "leduc_poker"], RULES, Limits(pairs=1))
    axes = league_figure(result).axes[0]
    bars = [*axes.containers]
    assert len({bar.lines[0].get_color() for bar in bars}) == len(bars) == 3
    heights = sorted(y for bar in bars for y in bar.lines[0].get_ydata())
    assert len(set(heights)) == 6, "none covers another"
    assert heights[2] - heights[0] < heights[3] - heights[1], "those of a game stand together"
    assert axes.texts[0].get_text().startswith("12 games, 95% intervals")
    console = Console(file=io.StringIO(), width=120)
    print_league(result, console)
    assert "Standings: mean rank over the games" in console.file.getvalue()


def test_a_second_session_replaces_the_files_of_the_first(tmp_path: Path) -> None:
    for pairs in (1, 2):
        miner(*["duel", "random", "b=random", "--games", "leduc_poker", "--out", tmp_path / "out"],
              "--pairs", pairs)  # fmt: skip
    written = json.loads((tmp_path / "out" / "league.json").read_text())
    assert len(written["matches"][0]["games"]) == 4
