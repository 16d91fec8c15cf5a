"""The end of a match: the recorded matches, game by game."""

from collections.abc import Callable

import pytest

from miner.duel import memory
from miner.duel.match import Limits, MatchResult, play_match
from miner.duel.memory import Keep, Notes, TokenizerCounter, WordCounter
from miner.duel.play import Rules
from miner.duel.players.base import Reply
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.games import GAMES
from tests.builders import build_tokenizer
from tests.duel.golden import Line, golden
from tests.duel.stand_ins import Scripted, lowest_call, move

LEDUC = GAMES["leduc_poker"]
FOLD, CALL, RAISE = 0, 1, 2

Answer = Callable[[Request], Reply]


def gives_up(request: Request) -> Reply:
    """Folds as soon as it may: loses to whoever raises."""
    return (
        Reply() if request.kind == "reflection" else move(FOLD if FOLD in request.legal else CALL)
    )


def raises(request: Request) -> Reply:
    return (
        Reply() if request.kind == "reflection" else move(RAISE if RAISE in request.legal else CALL)
    )


def forfeits(request: Request) -> Reply:
    return Reply(content="no call")


def _wins_first(winner: Answer, loser: Answer) -> Answer:
    """`winner` up to the first reflection, then `loser`."""
    reflected: list[Request] = []

    def answer(request: Request) -> Reply:
        if request.kind == "reflection":
            reflected.append(request)
        return (loser if reflected else winner)(request)

    return answer


SCENARIOS: dict[str, tuple[Answer, Answer, str]] = {
    "a_forfeits_always": (forfeits, lowest_call, "a forfeited 10 games"),
    "b_forfeits_always": (lowest_call, forfeits, "b forfeited 10 games"),
    "both_forfeit_always": (forfeits, forfeits, "a forfeited 10 games"),
    "a_forfeits_in_seat_0_only": (
        lambda request: raises(request) if request.player == 1 else forfeits(request),
        gives_up,
        "a forfeited 10 games",
    ),
    "a_loses_ten_in_a_row": (gives_up, raises, "a lost 10 games in a row"),
    "a_does_not_lose_game_1": (
        _wins_first(raises, gives_up),
        _wins_first(gives_up, raises),
        "a lost 21 games in a row",
    ),
    "time_budget_checked_after_a_pair": (
        _wins_first(raises, gives_up),
        _wins_first(gives_up, raises),
        "time was up",
    ),
}
"""Answers of both, and why the match ends."""


@pytest.mark.parametrize("line", golden("matchups"), ids=lambda line: line["scenario"])
async def test_matches_end_where_the_tournaments_end(line: Line) -> None:
    first, second, why = SCENARIOS[line["scenario"]]
    budget = line["time_budget_s"]
    ticks = iter(range(10**9))
    result = await play_match(
        LEDUC,
        Scripted("a", first),
        Scripted("b", second),
        Rules(line["base_seed"], own_wording(), clock=lambda: float(next(ticks))),
        Limits(seconds=1e12 if budget == "unlimited" else budget),
    )
    assert _games(result) == line["games"]
    assert {
        "model_a_wins": result.count("win"),
        "model_b_wins": result.count("loss"),
        "draws": result.count("draw"),
        "total_games": len(result.games),
    } == line["result"]
    assert result.stopped.startswith(why)


def _games(result: MatchResult) -> list[Line]:
    games = []
    for record in result.games:
        side = {0: "a", 1: "b", None: ""}[record.forfeiter]
        games.append(
            {
                "seed": record.seed,
                "model_a_player_id": record.first_seat,
                "model_a": f"{record.result}/forfeit {side}" if side else record.result,
            }
        )
    return games


async def test_a_limit_of_pairs_ends_a_match_that_nothing_else_ends() -> None:
    a, b = Scripted("a", lowest_call), Scripted("b", lowest_call)
    result = await play_match(LEDUC, a, b, Rules(1, own_wording()), Limits(pairs=3))
    assert len(result.games) == 6
    assert result.stopped == "6 games were played"
    assert [record.first_seat for record in result.games] == [0, 1] * 3


class _ByteCounter:
    def count(self, text: str) -> int:
        return len(text.encode())

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        raw = text.encode()
        return (raw[:tokens] if keep == "front" else raw[len(raw) - tokens :]).decode()


@pytest.mark.parametrize("line", golden("memory"), ids=lambda line: line["scenario"])
def test_edits_keep_what_the_tournaments_do(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_TOKENS", line["slot_token_budget"])
    assert line["slots"] == list(memory.SLOTS.values())
    notes = Notes({"whitespace": WordCounter(), "byte": _ByteCounter()}[line["counter"]])
    for edit in line["ops"]:
        before = notes.render()
        notes.call(edit["tool"], edit["arguments"])
        assert edit["result"] != "refused" or notes.render() == before
    assert notes.working.texts == list(line["final"]["working_memory"].values())
    assert notes.long_term.texts == list(line["final"]["long_term_memory"].values())
    assert notes.render() == "\n\n".join(line["rendered"].values())


def test_a_tokenizer_counts_what_the_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_TOKENS", 5)
    counter = TokenizerCounter(build_tokenizer())
    notes = Notes(counter)
    text = "bids high early, then low"
    assert counter.count(text) > 5  # most letters are tokens of their own
    notes.call("working_memory_rewrite", {"slot": 1, "content": text})
    kept = notes.working.texts[0]
    assert kept == counter.cut(text, 5, "front")
    assert text.startswith(kept)
    assert counter.count(kept) == 5
    notes.call("working_memory_append", {"slot": 1, "content": "!?"})
    assert notes.working.texts[0] == counter.cut(f"{kept}\n!?", 5, "end")
    assert notes.working.texts[0].endswith("\n!?")


def test_a_new_game_forgets_the_working_memory_alone() -> None:
    notes = Notes(WordCounter())
    for tool in ("working_memory_rewrite", "long_term_memory_rewrite"):
        notes.call(tool, {"slot": 1, "content": "kept?"})
    notes.begin_game()
    assert notes.working.texts[0] == ""
    assert notes.long_term.texts[0] == "kept?"
    assert "[1] (empty)" in notes.render()
