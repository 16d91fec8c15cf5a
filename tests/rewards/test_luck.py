"""Scores without luck are the same on average and vary less, and luck is what the draws brought."""

from statistics import fmean, stdev

import pytest

from miner.environments.base import EpisodeTask
from miner.environments.games import GameSession
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.games.goofspiel import parse_state
from miner.rewards.goofspiel_critic import solved
from miner.rewards.luck import TAU, luck, without_luck

EIGHT_CARDS = 0  # a task id


def played(seed: int, bid: str, stops_after: int = 99) -> EpisodeRecord:
    """A game against random bids: the prize's card, or its worst answer, the lowest.

    Args:
        stops_after: bids after which invalid replies lose it.
    """
    session, replies = GameSession(EIGHT_CARDS, seed), list[Reply]()
    while not session.done and len(replies) < stops_after:
        state = parse_state(session.turn().state_text)
        hand = state.hands[session.agent_seat]
        card = min(hand, key=lambda card: abs(card - state.prize) if bid == "prize" else card)
        replies.append(Reply(text=str(card - 1), action=card - 1))
        session.play(card - 1)
    score = session.score() if session.done else 0.0
    replies += [Reply(text="no", action=None, valid=False, number=False)] * (not session.done) * 3
    return EpisodeRecord.of(
        EpisodeTask("goofspiel", EIGHT_CARDS, seed, "random"), score=score, replies=tuple(replies)
    )


def result(*episodes: EpisodeRecord) -> EvaluationResult:
    return EvaluationResult(
        policy="p", channel="builtin", environment="goofspiel", episodes=episodes
    )


@pytest.mark.parametrize(("bid", "expected"), [("prize", 0.925), ("lowest", None)])
def test_the_mean_stays_and_varies_less(bid: str, expected: float | None) -> None:
    """The prize's card wins 0.925 of all games against random bids."""
    games = [played(seed, bid) for seed in range(400)]
    raw = [float(game.score or 0) for game in games]
    found = without_luck(result(*games))
    assert found is not None
    error, raw_error = (found.mean - found.low) / 1.96, stdev(raw) / 20
    assert error < (0.45 if bid == "prize" else 0.8) * raw_error
    assert abs(found.mean - fmean(raw)) < 3 * raw_error
    if expected is not None:
        assert abs(found.mean - expected) < 3 * error


def test_a_game_that_invalid_replies_end_has_the_luck_until_then() -> None:
    chances = solved(TAU)
    game, whole = (played(7, "prize", stops_after=stops) for stops in (3, 99))
    assert game.score == 0.0
    assert luck(game, chances) != luck(whole, chances)
    none = played(7, "prize", stops_after=0)
    first = parse_state(GameSession(EIGHT_CARDS, 7).turn().state_text)
    best = {
        prize: max(
            chances.after_each(
                *first.hands, 0, prize, tuple(card for card in first.hands[0] if card != prize)
            ).values()
        )
        for prize in first.hands[0]
    }
    assert luck(none, chances) == pytest.approx(best[first.prize] - fmean(best.values()))


def test_it_is_told_apart_only_where_every_draw_is_known() -> None:
    game, *lost_and_won = (played(seed, "lowest") for seed in range(12))
    assert {each.score for each in lost_and_won} >= {0.0, 1.0}
    assert game.score in (0.0, 1.0)
    assert without_luck(result(*lost_and_won)) is not None
    won = [each for each in lost_and_won if each.score == 1.0]
    assert without_luck(result(*won)) is None  # it would show chance where there is none
    twice = (game.replies[0], game.replies[0])
    for other in (
        {"opponent": "mcts"},
        {"environment": "leduc_poker"},
        {"replies": (Reply(text="4", action=None),)},
        {"replies": twice},  # a server that reads replies otherwise
        {"score": 0.5},  # or drew otherwise
    ):
        assert without_luck(result(*lost_and_won, game.model_copy(update=other))) is None
    over_step = result(*lost_and_won).model_copy(update={"channel": "step"})
    assert without_luck(over_step) is None  # where cards are drawn from another stream
