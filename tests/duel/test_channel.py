"""Duels as episodes: the same requests, results and forfeits as a duel between two players."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from miner.channels.duel import DuelChannel
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.duel.calls import write_calls
from miner.duel.channel.environment import Duel, DuelSource
from miner.duel.channel.longest import NOTES_TOKENS, turn_tokens
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import (
    DuelTasks,
    duel_of,
    duel_task,
    evaluation_duels,
    fitting_seeds,
    size_of,
)
from miner.duel.memory import Keep, Notes, WordCounter
from miner.duel.outcome import POINTS, Cause
from miner.duel.play import Rules, play_game
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit
from miner.duel.players.catalog import make_player
from miner.duel.table import Table, game_seeds
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.environments.base import Observation, Transition
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.evaluation.grader import GRADER_SEEDS, HELD_OUT_SEEDS, TRAINING_SEEDS
from miner.games import GAMES
from miner.rollout.renderer import ChatRenderer
from tests.builders import build_tokenizer, save_base
from tests.duel.golden import stuck_game
from tests.duel.stand_ins import Scripted, calls, lowest_call, move
from tests.virtual_time import run_paused


def source(*, opponent: Scripted | None = None, published: Path | None = None) -> DuelSource:
    """Duels against players of the catalogue, or against `opponent`."""
    make = make_player if opponent is None else lambda name, games: opponent
    return DuelSource(
        Opponents(list(GAMES), published=published, make=make),
        own_wording(),
        family="qwen25",
    )


def written(reply: Reply) -> str:
    """A reply as a model of Qwen's family says it."""
    return write_calls("qwen25", reply.calls)


async def played(duel: Duel, game: str, seed: int, seat: int) -> tuple[list[str], Transition]:
    """A game of first legal moves: each user message, and the end."""
    shown: Observation | Transition = await duel.reset(duel_task(game, seed, seat, "mcts:2"))
    texts = []
    while shown.messages:
        texts.append(shown.messages[1]["content"])
        legal = [line.partition(" ->")[0] for line in texts[-1].split("Legal actions:\n")[1:]]
        note = ("working_memory_append", '{"slot": 1, "content": "seen"}')
        act = ("game_action", f'{{"action_id": {legal[0]}}}')
        shown = await duel.step(written(calls(note, act)))
    assert isinstance(shown, Transition)
    return texts, shown


@pytest.mark.parametrize("game", GAMES)
async def test_an_episode_is_the_game_that_two_players_play(game: str) -> None:
    """Against the loop that the tournament's transcripts hold to account."""
    for seat in (0, 1):
        texts, end = await played(source().open(), game, 77, seat)

        asked = []

        def first_legal(request: Request, asked: list[str] = asked) -> Reply:
            if request.kind == "reflection":
                return Reply()
            asked.append(request.user)
            note = ("working_memory_append", '{"slot": 1, "content": "seen"}')
            return calls(note, ("game_action", f'{{"action_id": {request.legal[0]}}}'))

        players = [Scripted("policy", first_legal), make_player("mcts:2", [game])]
        notes = [Notes(WordCounter()), Notes(WordCounter())]
        rules = Rules(1, own_wording())
        record = await play_game(GAMES[game], 77, players, notes, rules, first_seat=seat)
        assert texts == asked
        assert end.score == POINTS[record.result]
        assert end.valid


class Letters(WordCounter):
    """Counts letters, so that a note that fits in words does not."""

    def count(self, text: str) -> int:
        return len(text)

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        return text[:tokens] if keep == "front" else text[len(text) - tokens :]


@pytest.mark.parametrize("seat", [0, 1])
async def test_the_policys_notes_are_counted_by_its_own_tokenizer(seat: int) -> None:
    opened = source()
    opened.counter = Letters()
    duel = opened.open()
    await duel.reset(duel_task("goofspiel", 5, seat, "random"))
    note = ("working_memory_rewrite", '{"slot": 1, "content": "' + "a" * 2000 + 'b"}')
    shown = await duel.step(written(calls(note, ("game_action", '{"action_id": 1}'))))
    assert "aaaa" in shown.messages[0]["content"]
    assert "b\n" not in shown.messages[0]["content"].partition("aaaa")[2][:2100]


@pytest.mark.parametrize(("opponent", "note"), [("bid", "They bid the prize."), ("random", "")])
@pytest.mark.parametrize("seat", [0, 1])
async def test_a_share_of_the_games_begins_with_notes_of_a_game_before(
    opponent: str, note: str, seat: int
) -> None:
    seed = next(fitting_seeds("goofspiel", itertools.count(3), (8,)))
    task = duel_task("goofspiel", seed, seat, opponent)
    shown = []
    for share in (0.0, 1.0):
        rivals = Opponents(["goofspiel"])
        duel = DuelSource(rivals, own_wording(), family="qwen25", notes=share).open()
        shown.append((await duel.reset(task)).messages[0]["content"])
    assert shown[0].count("(empty)") == 12
    assert shown[1].count("(empty)") == 11
    assert note in shown[1]


@pytest.mark.parametrize("seat", [0, 1])
async def test_the_game_before_is_played_from_the_other_seat(seat: int) -> None:
    asked = []

    def first_legal(request: Request) -> Reply:
        asked.append(request.player)
        return move(request.legal[0])

    opened = source(opponent=Scripted("rival", first_legal))
    opened.notes = 1.0
    await opened.open().reset(duel_task("goofspiel", 5, seat, "rival"))
    before = len(asked) - seat  # the own game has begun where the opponent moves first
    assert before > 0
    assert asked == [seat] * before + [0] * seat


async def test_games_whose_teacher_writes_no_notes_begin_without() -> None:
    source = DuelSource(Opponents(["leduc_poker"]), own_wording(), family="qwen25", notes=1.0)
    first = await source.open().reset(duel_task("leduc_poker", 4, 0, "random"))
    assert first.messages[0]["content"].count("(empty)") == 12


async def test_each_turn_is_a_fresh_chat_with_tools_and_the_notes_of_the_game() -> None:
    duel = source().open()
    first = await duel.reset(duel_task("leduc_poker", 5, 0, "random"))
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert [tool["function"]["name"] for tool in first.tools][-1] == "game_action"
    assert list(first.tools[0]["function"]) == ["description", "name", "parameters", "strict"]
    note = ("working_memory_rewrite", '{"slot": 2, "content": "raises a lot"}')
    shown = await duel.step(written(calls(note, ("game_action", '{"action_id": 1}'))))
    assert shown.messages
    assert shown.fresh
    assert "[2] raises a lot" in shown.messages[0]["content"]
    assert shown.tools[-1]["function"]["parameters"]["properties"]["action_id"]["enum"]


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("3", "no tool call"),
        ("", "no tool call"),
        ("x" * 100_000, "no tool call"),
        (written(calls(("working_memory_append", '{"slot": 1, "content": "x"}'))), "no game_act"),
        (written(move(99)), "illegal action"),
        (written(calls(("game_action", '{"action_id": 1.0}'))), "illegal action"),
        (written(calls(("game_action", '{"action_id": null}'))), "illegal action"),
        (written(calls(("game_action", "{}"))), "unreadable arguments"),
    ],
)
async def test_a_reply_without_a_legal_move_loses_and_gives_the_reason(
    reply: str, fault: str
) -> None:
    duel = source().open()
    await duel.reset(duel_task("leduc_poker", 5, 0, "random"))
    end = await duel.step(reply)
    assert (end.done, end.score, end.valid, end.action) == (True, 0.0, False, None)
    assert fault in end.fault
    with pytest.raises(ProtocolError, match="reset"):
        await duel.step(reply)


async def test_an_illegal_call_before_a_legal_one_is_passed_over() -> None:
    duel = source().open()
    await duel.reset(duel_task("leduc_poker", 5, 0, "random"))
    reply = calls(("game_action", '{"action_id": 99}'), ("game_action", '{"action_id": "1"}'))
    assert (await duel.step(written(reply))).action == 1


async def test_an_opponent_that_fails_to_decide_plays_at_random_instead() -> None:
    """Else the policy would be paid for nothing, before it has said a word."""

    def gives_up(request: Request) -> Reply:
        raise ReplyForfeit("turn time-out", "thinks for ever")

    for answer in (gives_up, lambda request: Reply()):
        duel = source(opponent=Scripted("b", answer)).open()
        assert (await duel.reset(duel_task("leduc_poker", 5, 1, "b"))).messages


def test_an_opponent_may_take_its_time() -> None:
    """A limit would end the game, and another deal would take its place."""
    pauses = iter([3600.0])

    class Slow(Scripted):
        async def reply(self, request: Request) -> Reply:
            await asyncio.sleep(next(pauses, 0.0))
            return await super().reply(request)

    duel = source(opponent=Slow("b", lowest_call)).open()
    _, seconds = run_paused(duel.reset(duel_task("leduc_poker", 5, 1, "b")))
    assert (duel.table.seed, seconds) == (5, 3600.0)


async def test_an_opponent_whose_server_hangs_is_not_a_score() -> None:
    def hangs(request: Request) -> Reply:
        raise ReplyForfeit(Cause.HTTP_SLOW, "no answer in 35 s")

    duel = source(opponent=Scripted("b", hangs)).open()
    with pytest.raises(InfrastructureError, match=r"b failed: .*no answer in 35 s"):
        await duel.reset(duel_task("leduc_poker", 5, 1, "b"))


async def test_an_opponent_that_fails_is_not_a_score() -> None:
    def fails(request: Request) -> Reply:
        raise PlayerError("the server said 500")

    duel = source(opponent=Scripted("b", fails)).open()
    with pytest.raises(InfrastructureError, match=r"opponent b failed.*500"):
        await duel.reset(duel_task("leduc_poker", 5, 1, "b"))


async def test_a_position_without_a_legal_action_is_a_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = stuck_game(monkeypatch)
    left = iter(line["scripted_player_actions"])
    duel = source(opponent=Scripted("b", lambda request: move(next(left)))).open()
    shown: Any = await duel.reset(duel_task("gin_rummy", line["seed"], 0, "b"))
    while shown.messages:
        shown = await duel.step(written(move(next(left))))
    assert (shown.done, shown.score, shown.valid) == (True, 0.5, True)
    assert duel.table.state.history() == line["history"]


async def test_a_game_that_ends_before_the_first_turn_gives_its_place_to_another() -> None:
    """This opening leaves the policy no move once the opponent has made its own."""
    task = duel_task("clobber", 1976124014, 1, "random")
    dead = Table(GAMES["clobber"], task.task_id)
    duel = source().open()
    assert (await duel.reset(task)).messages
    assert duel.table.seed > dead.seed
    assert duel.table.loaded.get_parameters() == dead.loaded.get_parameters()
    with pytest.raises(ProtocolError, match="no episode is open"):
        _ = source().open().table


def stream(**named) -> DuelTasks:
    return DuelTasks(EnvironmentSettings(channel="duel", **named))


def test_games_opponents_and_seats_come_equally_often() -> None:
    wanted = stream(games=("goofspiel", "othello"), opponents=("random", "snapshot"))
    tasks = [wanted.training(i, seed=3) for i in range(160)]
    kinds = Counter((t.environment, t.opponent, t.seed % 2) for t in tasks)
    assert len(kinds) == 8
    assert set(kinds.values()) == {20}
    assert tasks[50:60] == [wanted.training(i, seed=3) for i in range(50, 60)]
    assert all(t.task_id in TRAINING_SEEDS for t in tasks)


def test_only_the_wanted_decks_are_dealt() -> None:
    wanted = stream(games=("goofspiel",), cards=(5,))
    assert {size_of("goofspiel", wanted.training(i, 0).task_id) for i in range(30)} == {5}


def test_only_the_wanted_boards_are_set_up_and_games_come_as_often_as_listed() -> None:
    wanted = stream(games=("clobber", "clobber", "leduc_poker"), boards=("4x5",))
    tasks = [wanted.training(i, 0) for i in range(30)]
    boards = {size_of("clobber", t.task_id) for t in tasks if t.environment == "duel:clobber"}
    assert boards == {"4x5"}
    assert [t.environment for t in tasks].count("duel:clobber") == 20
    held_out = [t.environment for t in wanted.held_out(20, 7)]
    assert held_out.count("duel:clobber") == 10


def test_held_out_games_are_pairs_that_are_neither_trained_on_nor_graded() -> None:
    wanted = stream(games=("othello", "goofspiel"), opponents=("random", "snapshot"))
    tasks = wanted.held_out(40, 7)
    assert all(t.task_id in HELD_OUT_SEEDS and t.task_id not in GRADER_SEEDS for t in tasks)
    assert [duel_of(task)[2] for task in tasks] == [0, 1] * 20
    assert all(a.task_id == b.task_id for a, b in zip(tasks[::2], tasks[1::2], strict=True))
    assert Counter((t.environment, t.opponent) for t in tasks) == {
        (f"duel:{game}", opponent): 10
        for game in ("othello", "goofspiel")
        for opponent in ("random", "base")
    }


def test_evaluated_games_are_the_tournaments_for_the_seed() -> None:
    tasks = evaluation_duels(6, 42, ["othello"], ["random"])
    drawn = game_seeds(42)
    assert [task.task_id for task in tasks[::2]] == [next(drawn) for _ in range(3)]


def test_all_opponents_are_met_in_an_evaluation() -> None:
    channel = DuelChannel(
        EnvironmentSettings(
            channel="duel", games=("othello",), opponents=("random", "base", "teacher")
        )
    )
    met = [task.opponent for task in channel.compared(8, 42)]
    assert met == ["random"] * 2 + ["teacher"] * 2 + ["random"] * 2 + ["teacher"] * 2


def test_opponents_that_there_are_not_are_refused_before_training() -> None:
    rivals = Opponents(["othello"])
    for name, words in (("bid", "plays goofspiel only"), ("strongest", "neither a folder")):
        with pytest.raises(ConfigurationError, match=words):
            rivals.check(name)
    with pytest.raises(ConfigurationError, match="training run"):
        rivals.check("snapshot")


async def test_the_snapshot_is_the_newest_published_model(tmp_path: Path) -> None:
    made: list[Scripted] = []

    def make(name: str, games: object) -> Scripted:
        made.append(Scripted(name, lowest_call))
        return made[-1]

    def publish(step: int) -> None:
        (tmp_path / "miner_publication.json").write_text(json.dumps({"step": step}))

    rivals = Opponents(["othello"], published=tmp_path, make=make)
    publish(0)
    assert await rivals.player("snapshot") is await rivals.player("snapshot") is made[0]
    random = await rivals.player("random")
    publish(20)
    assert not made[0].closed
    assert await rivals.player("snapshot") is made[2]
    assert made[2].name == f"snapshot={tmp_path}"
    assert await rivals.player("random") is random
    assert [player.closed for player in made] == [True, False, False]
    await rivals.close()
    assert [player.closed for player in made] == [True, True, True]


async def test_no_turn_is_longer_than_the_limit_leaves_room_for() -> None:
    tokenizer = build_tokenizer()
    renderer = ChatRenderer(tokenizer)
    tasks = [duel_task("clobber", seed, 0, "random") for seed in range(1, 6)]
    [limit] = turn_tokens(tasks, own_wording(), renderer).values()
    duel, rng = source().open(), Random(1)
    lengths = []
    for task in tasks:
        shown: Observation | Transition = await duel.reset(task)
        while shown.messages:
            text = renderer.render(shown.messages, shown.tools)
            lengths.append(len(renderer.encode(text)))
            ids = shown.tools[-1]["function"]["parameters"]["properties"]["action_id"]["enum"]
            shown = await duel.step(written(move(rng.choice(ids))))
    assert 0.9 * max(lengths) < limit - NOTES_TOKENS < 1.1 * max(lengths)


async def test_the_channel_opens_duels_as_the_settings_say(tmp_path: Path) -> None:
    wanted = EnvironmentSettings(
        channel="duel", games=("goofspiel",), notes=0.5, tool_parser="hermes"
    )
    opened = await DuelChannel(wanted, save_base(tmp_path / "base")).open()
    assert (opened.notes, opened.family) == (0.5, "hermes")


def test_the_channel_evaluates_on_the_boards_that_are_set() -> None:
    wanted = EnvironmentSettings(channel="duel", games=("clobber",), boards=("4x5",))
    tasks = DuelChannel(wanted).compared(12, 42)
    assert {size_of("clobber", task.task_id) for task in tasks} == {"4x5"}
