"""Scores of the first format's Goofspiel without the luck of the draws.

Each prize that is turned up, and each card of the opponent's, moves the chance to win; less the
mean over all that could have come, that is zero on average, whatever the policy plays. So a score
from which these moves are taken has the same mean and varies little: the terms of AIVAT for chance
and for an opponent whose strategy is known (Burch et al. 2018, arXiv 1612.06915). The critic's
chances need not be right for that; the nearer they are, the less is left.
"""

from math import inf
from statistics import fmean

from miner.config.contract import GOOFSPIEL
from miner.environments.games import GameSession
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.evaluation.statistics import Estimate, t_interval
from miner.games import RANDOM
from miner.games.goofspiel import GoofspielState, parse_state
from miner.rewards.goofspiel_critic import Chances, solved, without

TAU = 0.003
"""Of the policy whose chances these are: sharp, as one that has learned."""


def without_luck(result: EvaluationResult) -> Estimate | None:
    """Mean score without luck and its 95% interval, which may reach below 0.

    None where a score is not of Goofspiel against random moves, or a move is not known, and where
    all games ended alike.
    """
    played = [episode for episode in result.episodes if episode.score is not None]
    known = all(
        (each.environment, each.opponent) == (GOOFSPIEL, RANDOM)
        and all(reply.action is not None for reply in each.replies if reply.valid)
        for each in played
    )
    if not known or result.channel == "step" or len({each.score for each in played}) < 2:
        return None
    chances = solved(TAU)
    try:
        scores = [float(each.score or 0) - luck(each, chances) for each in played]
    except ValueError:  # a server that played otherwise than was recorded
        return None
    return t_interval(scores, -inf)


def luck(episode: EpisodeRecord, chances: Chances) -> float:
    """What the draws of an episode added to the chance to win.

    Raises: ValueError if it was not played so.
    """
    session = GameSession(episode.task_id, episode.seed)
    state = parse_state(session.turn().state_text)
    total = _of_prize(chances, state, session.agent_seat)
    for reply in episode.replies:
        if not reply.valid or reply.action is None:
            continue
        mine, theirs, lead = _sides(state, session.agent_seat)
        after = chances.after_both(mine, theirs, lead, state.prize, state.remaining)
        by_theirs = dict(zip(theirs, after[mine.index(reply.action + 1)], strict=True))
        session.play(reply.action)
        total -= fmean(by_theirs.values())
        if session.done:
            if session.score() != episode.score:
                raise ValueError(f"recorded as {episode.score}, played as {session.score()}")
            return total + session.score()
        state = parse_state(session.turn().state_text)
        [bid] = {*theirs} - {*state.hands[1 - session.agent_seat]}
        total += by_theirs[bid] + _of_prize(chances, state, session.agent_seat)
    return total


def _of_prize(chances: Chances, state: GoofspielState, seat: int) -> float:
    drawn = tuple(sorted((state.prize, *state.remaining)))
    best = {
        prize: max(chances.after_each(*_sides(state, seat), prize, without(drawn, prize)).values())
        for prize in drawn
    }
    return best[state.prize] - fmean(best.values())


def _sides(state: GoofspielState, seat: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Own hand, the opponent's, and the lead."""
    return (
        state.hands[seat],
        state.hands[1 - seat],
        state.points[seat] - state.points[1 - seat],
    )
