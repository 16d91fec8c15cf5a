"""Causes of a lost game, of the end of a match, and failures of no player."""

import asyncio

import pytest

from miner.duel.match import Limits, play_match
from miner.duel.memory import Notes, TokenizerCounter, WordCounter
from miner.duel.outcome import Cause, GameRecord
from miner.duel.play import Rules, play_game
from miner.duel.players.base import PlayerError, Reply, ReplyForfeit, UnreachableError
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.games import GAMES, Game
from tests.builders import build_tokenizer
from tests.duel.golden import Line, digest, golden, stuck_game
from tests.duel.stand_ins import Scripted, calls, lowest_call, move

LEDUC = GAMES["leduc_poker"]
RULES = Rules(20260706, own_wording())

RAISED = {
    "context_overflow_400": ReplyForfeit(Cause.CONTEXT, "too long"),
    "http_timeout_twice": ReplyForfeit(Cause.HTTP_SLOW, "too slow"),
    "other_400": PlayerError("refused"),
    "server_500_twice": PlayerError("failed"),
    "connection_refused_twice": UnreachableError("away"),
}
"""How an endpoint's player reports these (test_endpoint holds it to that)."""

REPLIES = [line for line in golden("forfeits") if "every_reply_of_model_a" in line]


def _ids(line: Line) -> str:
    return f"{line['scenario']}-{line['model_a_player_id']}"


def _answer(line: Line):
    reply = line["every_reply_of_model_a"]

    def answer(request: Request) -> Reply:
        if request.kind == "reflection":
            return Reply()
        if line["scenario"] in RAISED:
            raise RAISED[line["scenario"]]
        return Reply(calls(*reply["tool_calls"]).calls, reply["content"])

    return answer


async def play(
    a: Scripted, b: Scripted, game: Game = LEDUC, seed: int = 24005, rules: Rules = RULES
) -> GameRecord:
    notes = Notes(WordCounter()), Notes(WordCounter())
    return await play_game(game, seed, (a, b), notes, rules)


@pytest.mark.parametrize(
    "line", [line for line in REPLIES if line["scenario"] != "slow_turn"], ids=_ids
)
async def test_replies_decide_as_the_tournament_decides(line: Line) -> None:
    a, b = Scripted("a", _answer(line)), Scripted("b", lowest_call)
    notes = (Notes(WordCounter()), Notes(WordCounter()))
    playing = play_game(
        LEDUC, line["seed"], (a, b), notes, RULES, first_seat=line["model_a_player_id"]
    )
    if line["escapes_as_exception"]:
        with pytest.raises(type(RAISED[line["scenario"]])):
            await playing
        return
    record = await playing
    assert record.history == line["history"]
    assert record.returns == line["returns"]
    assert record.result == line["outcome_model_a"]
    assert (record.forfeit and record.forfeit.player) == line["forfeiting_player"]
    retried = len(line["retry_waits_s"])  # within the endpoint's player, one request for us
    assert len(a.asked) + len(b.asked) == len(line["requests"]) - retried
    assert notes[0].long_term.texts[0] == line["long_term_a_slot1"]


def test_every_scenario_was_looked_at() -> None:
    assert len(REPLIES) == 58


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply(content="1"), Cause.NO_CALL),
        (calls(("working_memory_rewrite", '{"slot": 1, "content": "x"}')), Cause.NO_MOVE),
        (calls(("game_action", "1")), Cause.BAD_ARGUMENTS),
        (move(77), Cause.ILLEGAL),
        (calls(("game_action", "[" * 100_000)), Cause.BAD_ARGUMENTS),
        (calls(("game_action", '{"action_id": ' + "9" * 100_000 + "}")), Cause.BAD_ARGUMENTS),
        (calls(("game_action", '{"action_id": "' + "9" * 100_000 + '"}')), Cause.ILLEGAL),
        (calls(("game_action", '{"action_id": NaN}')), Cause.ILLEGAL),
    ],
    ids=["number", "notes", "no object", "illegal", "nested", "digits", "text", "nan"],
)
async def test_forfeits_name_their_cause(reply: Reply, cause: Cause) -> None:
    record = await play(Scripted("a", lambda request: reply), Scripted("b", lowest_call))
    assert record.forfeit is not None
    assert (record.forfeit.player, record.forfeit.cause) == (0, cause)


async def test_half_an_emoji_costs_no_legal_move_and_no_page() -> None:
    half = ("working_memory_rewrite", r'{"slot": 1, "content": "x \ud83d"}')

    def answer(request: Request) -> Reply:
        legal = request.legal[:1] if len(request.table.state.history()) < 6 else []
        action = f'{{"action_id": {legal[0]}}}' if legal else '{"action_id": "\ud83d"}'
        return calls(half, ("game_action", action))

    notes = (Notes(TokenizerCounter(build_tokenizer())), Notes(WordCounter()))
    record = await play_game(LEDUC, 24005, (Scripted("a", answer),) * 2, notes, RULES)
    assert notes[0].working.texts[0] == "x ?"
    assert len(record.history) == 6, "legal moves with such notes are played"
    assert record.forfeit is not None
    assert record.forfeit.reply.endswith('game_action({"action_id": "?"})')


async def test_a_player_that_never_answers_loses_when_the_turn_is_over() -> None:
    class Silent(Scripted):
        async def reply(self, request: Request) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

    line = next(line for line in REPLIES if line["scenario"] == "slow_turn")
    silent, other = Silent("a", lowest_call), Scripted("b", lowest_call)
    rules = Rules(1, own_wording(), turn_limit_s=0.01)
    record = await play(silent, other, seed=line["seed"], rules=rules)
    assert record.forfeit is not None
    assert record.forfeit.cause == Cause.SLOW
    assert record.history == line["history"]
    assert record.returns == line["returns"]
    assert other.asked == ["reflection"]


async def test_a_reflection_that_fails_changes_nothing() -> None:
    def answer(request: Request) -> Reply:
        if request.kind == "reflection":
            raise RuntimeError("a bug")
        return lowest_call(request)

    record = await play(Scripted("a", answer), Scripted("b", answer))
    assert record.forfeit is None
    assert sum(record.returns) == 0


async def test_a_position_without_a_legal_action_is_a_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = stuck_game(monkeypatch)
    left = iter(line["scripted_player_actions"])
    shown: list[str] = []

    def answer(request: Request) -> Reply:
        if request.kind == "reflection":
            assert not request.table.state.is_terminal()
            shown.append(request.table.text(request.player))
            return Reply()
        return move(next(left))

    a, b = Scripted("a", answer), Scripted("b", answer)
    record = await play(a, b, GAMES["gin_rummy"], line["seed"])
    assert record.history == line["history"]
    assert (record.returns, record.result, record.forfeit) == ([0.0, 0.0], "draw", None)
    assert digest(shown[0]) == line["first_reflection_user"]


async def test_a_server_that_was_away_gets_its_games_again() -> None:
    away = iter([True, True, False])
    waits: list[float] = []

    def answer(request: Request) -> Reply:
        if request.kind == "turn" and next(away, False):
            raise UnreachableError("away")
        return lowest_call(request)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    a, b = Scripted("a", answer), Scripted("b", lowest_call)
    result = await play_match(LEDUC, a, b, RULES, Limits(pairs=2, sleep=sleep))
    assert len(waits) == 2
    assert result.failure is None
    assert len(result.games) == 4


async def test_a_player_that_fails_for_good_ends_its_match_and_no_more() -> None:
    def answer(request: Request) -> Reply:
        raise ZeroDivisionError("a bug of a player's")

    a, b = Scripted("a", answer), Scripted("b", lowest_call)
    result = await play_match(LEDUC, a, b, RULES, Limits(pairs=2))
    assert result.failure == "ZeroDivisionError: a bug of a player's"
    assert result.games == []
