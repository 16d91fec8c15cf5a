"""Rows of all legal replies: their prompts, weights and texts, and what the critic gets to know."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from miner.config.settings import RewardSettings
from miner.environments.base import EpisodeTask, Message
from miner.rewards.all_moves import UNIT, AllMoves, prompts_by_turn
from miner.rewards.goofspiel_critic import GoofspielCritic
from miner.rollout.trajectory import Trajectory
from tests.builders import build_task, build_trajectory
from tests.rewards.positions import SEATS, shown, user

EOS, PENALTY = 1, 0.3
FIRST = shown(4, "12356", ("1 2 3 4 5 6", "1 2 3 4 5 6"))
LATER = shown(5, "1", ("2 6", "1 3"), (9, 9))
TASK = build_task(seed=2)  # seat 0


def encode(reply: str) -> tuple[int, ...]:
    return (100 + int(reply), EOS)


def all_moves(tau: float = 0.05, targets: float = 1.0, *, named: bool = False) -> AllMoves:
    reward = RewardSettings(tau=tau, targets=targets, invalid_reply_penalty=PENALTY)
    return AllMoves(GoofspielCritic(tau, named=named), encode, reward)


def played(*replies: str, valid: tuple[bool, ...], texts: tuple[str, ...]) -> Trajectory:
    return build_trajectory(1.0, task=TASK, replies=replies, valid=valid, shown=texts)


GAME = played("3", "x", "5", valid=(True, False, True), texts=(FIRST, LATER, "Again?"))


def test_each_decision_has_its_legal_replies_behind_its_own_prompt() -> None:
    rows = all_moves(1.0).rows(GAME, range(3))
    prompts = prompts_by_turn(GAME)
    (episode,) = GAME.rows
    assert prompts[0] == episode.prompt_ids
    assert prompts[2] == episode.prompt_ids + episode.completion_ids[: episode.turn_ids.index(2)]
    replies = {
        prompt: {r.completion_ids for r in rows if r.prompt_ids == prompt} for prompt in prompts
    }
    assert replies[prompts[0]] == {encode(str(action)) for action in range(6)}
    # a retry answers the position shown before it
    assert replies[prompts[1]] == replies[prompts[2]] == {encode("1"), encode("5")}


def test_a_turn_that_cannot_be_valued_is_not_taught_the_values_of_one_before_it() -> None:
    def values(shown: Sequence[Message], task: EpisodeTask) -> dict[str, float]:
        return {} if shown[-1]["content"] == LATER else {"3": 1.0}

    credit = AllMoves(SimpleNamespace(values=values), encode, RewardSettings())
    game = played("3", "5", valid=(True, True), texts=(FIRST, LATER))
    assert {row.prompt_ids for row in credit.rows(game, range(2))} == {prompts_by_turn(game)[0]}


def test_weights_of_a_decision_add_up_to_one_and_follow_the_values() -> None:
    rows = all_moves(0.05).rows(GAME, [2])
    weights = {row.completion_ids[0] - 100: row.weight for row in rows}
    # 6 wins this prize and the game; 2 wins it against 1 only, and 6 the point that is left
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights == pytest.approx({5: 1.0}, abs=1e-3)
    flat = all_moves(100.0).rows(GAME, [2])
    assert [row.weight for row in flat] == pytest.approx([0.5, 0.5], abs=0.01)


def test_nothing_of_these_rows_was_sampled_and_all_of_a_reply_is_learned() -> None:
    for row in all_moves().rows(GAME, range(3)):
        assert all(map(math.isnan, row.logprobs))
        assert row.loss_mask == (1,) * len(row.completion_ids)
        assert set(row.turn_ids) == {-1}


def test_without_trees_a_decision_has_one_reply_drawn_by_its_share() -> None:
    credit = all_moves(0.3)
    shares = {row.completion_ids: row.weight for row in credit.rows(GAME, [2])}
    drawn = [row for _ in range(400) for row in credit.rows(GAME, [2], every=False)]
    assert len(drawn) == 400
    assert {row.weight for row in drawn} == {1.0}
    whole = sum(row.entropy for row in credit.rows(GAME, [2]))
    assert [row.entropy for row in drawn] == pytest.approx([whole] * 400)
    assert whole == pytest.approx(-sum(share * math.log(share) for share in shares.values()))
    for reply, share in shares.items():
        found = sum(row.completion_ids == reply for row in drawn) / 400
        assert found == pytest.approx(share, abs=0.1)  # four standard errors


def test_after_the_targets_every_legal_reply_has_the_advantage_of_its_value() -> None:
    credit = all_moves(targets=0.4)
    for fraction, distance in ((0.39, 0.5), (0.4, None), (0.9, 1.1)):
        credit.begin(fraction, distance)
        assert not credit.by_policy, "too early, or too far from the targets"
    credit.begin(0.4, 0.9)
    assert credit.by_policy
    values = GoofspielCritic(0.05).values([user(FIRST)], SEATS[0]) or {}
    rows = credit.rows(GAME, [0])
    weights = {str(row.completion_ids[0] - 100): row.weight * UNIT for row in rows if row.weight}
    best = max(values.values())
    assert weights == pytest.approx({card: PENALTY + v - best for card, v in values.items()})
    assert max(weights.values()) == pytest.approx(PENALTY)  # more than a reply that is none


def test_replies_that_are_no_moves_must_cost_something_after_the_targets() -> None:
    RewardSettings(credit="all_moves", invalid_reply_penalty=0)
    with pytest.raises(ValueError, match=r"targets=0\.5 and reward\.invalid_reply_penalty=0"):
        RewardSettings(credit="all_moves", targets=0.5, invalid_reply_penalty=0)


def test_in_a_position_that_is_lost_anyway_no_move_is_a_bad_one() -> None:
    hopeless = played("1", valid=(True,), texts=(shown(5, "1", ("2 6", "1 3"), (0, 30)),))
    credit = all_moves(targets=0)
    credit.begin(0)
    rows = credit.rows(hopeless, [0])
    assert [row.weight for row in rows] == pytest.approx([PENALTY / UNIT] * 2)


def test_without_trees_one_reply_stands_for_all_by_policy_too() -> None:
    credit = all_moves(targets=0)
    credit.begin(0)
    whole = {row.completion_ids: row.weight for row in credit.rows(GAME, [2])}
    drawn = [row for _ in range(400) for row in credit.rows(GAME, [2], every=False)]
    assert {row.completion_ids: row.weight for row in drawn} == pytest.approx(
        {reply: 2 * weight for reply, weight in whole.items() if weight}
    )
    first = sum(row.completion_ids == encode("1") for row in drawn)
    assert 150 < first < 250


def test_turns_that_are_not_trained_have_none() -> None:
    assert {row.prompt_ids for row in all_moves().rows(GAME, [0])} == {prompts_by_turn(GAME)[0]}


def test_an_episode_without_a_position_has_none() -> None:
    assert all_moves().rows(build_trajectory(), range(2)) == []


@pytest.mark.parametrize("named", [False, True])
def test_the_regret_is_what_the_best_move_would_have_added(named: bool) -> None:
    """Whatever words a reply has beside its action."""
    critic = GoofspielCritic(0.05)
    first, later = critic.values([user(FIRST)], SEATS[0]), critic.values([user(LATER)], SEATS[0])
    named_critic = GoofspielCritic(0.05, named=named)
    credit = AllMoves(named_critic, lambda reply: (100, EOS), RewardSettings(tau=0.05))
    credit.rows(GAME, range(3))
    credit.end(lambda regrets: [regrets, [0.5]])
    moves = max(first.values()) - first["3"], max(later.values()) - later["5"]
    assert credit.regret == pytest.approx((sum(moves) + 0.5) / 3)
    credit.end(lambda regrets: [regrets])  # nothing was played since
    assert math.isnan(credit.regret)


def picks(credit: AllMoves, share: float, episodes: int) -> list[list[str]]:
    """Picks at FIRST and LATER in the guided ones of so many episodes."""
    guide = credit.guide(lambda: share)
    begun = [guide(TASK) for _ in range(episodes)]
    return [[str(pick([user(FIRST)])), str(pick([user(LATER)]))] for pick in begun if pick]


def test_a_share_of_the_episodes_is_guided_by_best_and_by_random_moves() -> None:
    credit = all_moves()
    assert picks(credit, 0.0, 50) == []
    assert len(picks(credit, 1.0, 50)) == 50
    guided = picks(credit, 0.5, 400)
    assert 150 < len(guided) < 250
    values = GoofspielCritic(0.05).values([user(LATER)], SEATS[0])
    assert values is not None
    best = max(values, key=lambda reply: values[reply])
    legal = [later for _, later in guided if later in values]
    share = sum(later == best for later in legal) / len(legal)
    assert 0.65 < share < 0.85  # always best where half of the moves are, else one of two at random
    assert len({first for first, _ in guided}) == 6


def test_a_guide_makes_mistakes_that_were_legal_before_and_corrects_them() -> None:
    guide, values = all_moves().guide(lambda: 1.0), GoofspielCritic(0.05)
    first, later = (values.values([user(text)], SEATS[0]) for text in (FIRST, LATER))
    assert first is not None
    assert later is not None
    mistakes = again = 0
    anew = []
    for _ in range(300):
        pick = guide(TASK)
        assert pick is not None
        assert pick([user(FIRST)]) in first
        reply = pick([user(LATER)])
        if reply not in later:
            mistakes += 1
            assert reply in first
            corrected = pick([user("that is not a legal action")])
            if corrected == reply:
                again += 1
                corrected = pick([user("that is not a legal action")])
            assert corrected in later
            if (reply := pick([user(LATER)])) not in later:
                anew.append(pick([user("that is not a legal action")]) == reply)
    assert 0.13 < mistakes / 300 < 0.27
    assert 0.3 < again / mistakes < 0.7
    assert 0 < len(anew) / mistakes < 0.5, "at the next position as at any"
    assert any(anew)


def test_a_mistake_is_nearest_the_best_move_and_is_not_read_as_a_legal_one() -> None:
    """Hand 2 and 6, ids 1 and 5, best 6: `Bid: 1` and `Bid: 5` are read as those of 2 and 6, and
    of `Bid: 3` and `Bid: 4` the latter is nearer."""
    pick = all_moves(named=True).guide(lambda: 1.0)(TASK)
    mistakes = set()
    for _ in range(300):
        assert pick is not None
        pick([user(FIRST)])
        mistakes.add(pick([user(LATER)]))
    assert mistakes == {"Bid: 2\n1", "Bid: 6\n5", "Bid: 4\n3"}


def test_a_guide_leaves_what_it_cannot_read_to_the_policy() -> None:
    pick = all_moves().guide(lambda: 1.0)(TASK)
    assert pick is not None
    assert pick([user("Good evening.")]) is None


def test_picked_moves_have_no_regret_and_their_positions_teach() -> None:
    turns = tuple(replace(turn, sampled_tokens=0) for turn in GAME.turns)
    credit = all_moves()
    rows = credit.rows(replace(GAME, turns=turns), range(3))
    assert {row.prompt_ids for row in rows} == set(prompts_by_turn(GAME))
    credit.end(lambda regrets: [regrets])
    assert math.isnan(credit.regret)
