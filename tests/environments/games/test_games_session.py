"""A session plays the seeded game: chance, opponent, both rules of applying a card, scores."""

import random
from dataclasses import dataclass

import numpy as np
import pyspiel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.config.contract import GAMES, LARGEST_SEED, agent_seat
from miner.config.errors import ConfigurationError
from miner.environments.games import CHANCE, GameSession
from miner.environments.games.opponents import Stream
from miner.environments.games.session import CardApplication
from miner.games import game_named, goofspiel
from tests.searches import searches_of

goofspiel_tasks = st.integers(0, 99_999_999)
seeds = st.integers(0, LARGEST_SEED)
streams = st.sampled_from(["train", "evaluate"])
rules = st.sampled_from(["asked", "faulty"])
policies = st.integers(0, 2**32)


@dataclass
class Played:
    """A finished game, by round."""

    session: GameSession
    prizes: list[int]
    opponent_indices: list[int]
    asked: list[int]
    applied: list[int]
    states: list[goofspiel.GoofspielState]


def _play(task_id: int, seed: int, stream: Stream, rule: CardApplication, policy: int) -> Played:
    session = GameSession(task_id, seed, stream=stream, card_application=rule)
    played = Played(session, [], [], [], [], [])
    rng = random.Random(policy)
    while not session.done:
        state = goofspiel.parse_state(session.state_text())
        action = rng.choice(session.legal_actions())
        played.states.append(state)
        played.prizes.append(state.prize)
        played.asked.append(action)
        played.applied.append(session.play(action))
        chosen = session.last_opponent_action()
        assert chosen is not None
        played.opponent_indices.append(state.hands[1 - session.agent_seat].index(chosen + 1))
    return played


@given(goofspiel_tasks, seeds, streams, rules, policies)
@settings(max_examples=60)
def test_streams_are_those_of_numpy(
    task_id: int, seed: int, stream: Stream, rule: CardApplication, policy: int
) -> None:
    played = _play(task_id, seed, stream, rule, policy)
    train = stream == "train"
    chance = np.random.RandomState(seed + 100 if train else seed)
    opponent = np.random.RandomState(seed + 2 if train else seed + (4 if seed % 2 else 5))
    remaining = list(range(1, goofspiel.GOOFSPIEL.size(task_id) + 1))
    for state, prize, index in zip(
        played.states, played.prizes, played.opponent_indices, strict=True
    ):
        uniform = [1 / len(remaining)] * len(remaining)
        assert prize == chance.choice(remaining, p=uniform)
        remaining.remove(prize)
        assert index == opponent.choice(len(state.hands[0]))


@given(goofspiel_tasks, seeds, streams, policies, policies)
@settings(max_examples=40)
def test_chance_and_opponent_do_not_depend_on_the_agent(
    task_id: int, seed: int, stream: Stream, one: int, other: int
) -> None:
    first = _play(task_id, seed, stream, "asked", one)
    second = _play(task_id, seed, stream, "asked", other)
    faulty = _play(task_id, seed, stream, "faulty", other)
    assert first.prizes == second.prizes == faulty.prizes
    assert first.opponent_indices == second.opponent_indices == faulty.opponent_indices


@given(goofspiel_tasks, seeds, rules, policies)
@settings(max_examples=40)
def test_a_game_is_consistent(task_id: int, seed: int, rule: CardApplication, policy: int) -> None:
    played = _play(task_id, seed, "train", rule, policy)
    size, seat = goofspiel.GOOFSPIEL.size(task_id), seed % 2
    assert played.session.agent_seat == agent_seat(seed) == seat
    assert len(played.asked) == size - 1
    held = set(range(size))
    for number, state in enumerate(played.states):
        assert {card - 1 for card in state.hands[seat]} == held
        assert sorted(card - 1 for card in state.hands[seat]) == sorted(held)
        assert len(state.hands[1 - seat]) == size - number
        assert set(state.remaining) | set(played.prizes[: number + 1]) == set(range(1, size + 1))
        assert len(state.wins) == number
        held.remove(played.applied[number])
    points = {player: played.states[-1].points[player] for player in (0, 1)}
    last = played.states[-1]
    forced = next(iter(held)) + 1
    rival = set(last.hands[1 - seat]) - {_opponent_card(played)}
    for prize, mine, theirs in (
        (last.prize, played.applied[-1] + 1, _opponent_card(played)),
        (last.remaining[0], forced, rival.pop()),
    ):
        if mine != theirs:
            points[seat if mine > theirs else 1 - seat] += prize
    margin = points[seat] - points[1 - seat]
    assert played.session.score() == (0.5 if margin == 0 else float(margin > 0))


def _opponent_card(played: Played) -> int:
    """The card that the opponent really lost in the last decided round."""
    seat = played.session.agent_seat
    return next(m.action for m in reversed(played.session.history) if m.player == 1 - seat) + 1


@given(goofspiel_tasks, seeds, policies)
@settings(max_examples=40)
def test_asked_plays_what_was_asked(task_id: int, seed: int, policy: int) -> None:
    played = _play(task_id, seed, "evaluate", "asked", policy)
    assert played.applied == played.asked


@given(goofspiel_tasks, seeds, policies)
@settings(max_examples=40)
def test_faulty_plays_what_openspiel_makes_of_the_packed_move(
    task_id: int, seed: int, policy: int
) -> None:
    played = _play(task_id, seed, "train", "faulty", policy)
    size, seat = goofspiel.GOOFSPIEL.size(task_id), seed % 2
    game = pyspiel.load_game(
        "goofspiel", {"players": 2, "num_cards": size, "points_order": "random"}
    )
    state = game.new_initial_state()
    for number, asked in enumerate(played.asked):
        state.apply_action(played.prizes[number] - 1)
        theirs = state.legal_actions(1 - seat)[played.opponent_indices[number]]
        pair = (asked, theirs) if seat == 0 else (theirs, asked)
        before = set(state.legal_actions(seat))
        state.apply_action(pair[0] + pair[1] * size)
        if not state.is_terminal():
            assert before - set(state.legal_actions(seat)) == {played.applied[number]}
    assert state.returns() == played.session.returns()


def test_the_faulty_rule_agrees_in_the_first_round_only() -> None:
    games = [_play(0, seed, "train", "faulty", seed) for seed in range(200)]
    assert all(game.applied[0] == game.asked[0] for game in games)
    later = [a == b for g in games for a, b in zip(g.applied[1:], g.asked[1:], strict=True)]
    assert 0.1 < sum(later) / len(later) < 0.5


def test_an_illegal_action_changes_nothing() -> None:
    session = GameSession(0, 0)
    session.play(3)
    before = session.state_text()
    with pytest.raises(ValueError, match="action 3 is not legal in goofspiel task 0 seed 0"):
        session.play(3)
    assert session.state_text() == before
    assert len([move for move in session.history if move.player != CHANCE]) == 2


def test_nothing_can_be_played_after_the_end() -> None:
    session = _play(0, 0, "evaluate", "asked", 0).session
    assert session.legal_actions() == []
    with pytest.raises(ValueError, match="not legal"):
        session.play(0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="must be between"):
        GameSession(0, seed)


@pytest.mark.parametrize("stream", ["train", "evaluate"])
def test_the_largest_seed_works(stream: Stream) -> None:
    assert not GameSession(0, LARGEST_SEED, stream=stream).done


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("stream", ["train", "evaluate"])
def test_every_game_ends_with_a_score_and_repeats(name: str, stream: Stream) -> None:
    first, _ = game_named(name).task_ids
    for number in range(6):
        histories = []
        for _ in range(2):
            session = GameSession(first + number, 1000 + number, stream=stream)
            rng = random.Random(number)
            while not session.done:
                turn = session.turn()
                assert list(turn.labels) == session.legal_actions()
                assert turn.seat == session.agent_seat == number % 2
                session.play(rng.choice(list(turn.labels)))
            assert 0.0 <= session.score() <= 1.0
            histories.append(session.history)
        assert histories[0] == histories[1]


@pytest.mark.parametrize("name", [name for name in GAMES if name != "goofspiel"])
def test_the_searching_opponent_repeats(name: str) -> None:
    first, _ = game_named(name).task_ids
    histories = []
    for _ in range(2):
        with searches_of(10, 1):
            session = GameSession(first, 7, opponent="mcts")
        for _ in range(10):
            if session.done:
                break
            session.play(session.legal_actions()[0])
        histories.append(session.history)
    assert histories[0] == histories[1]
    assert any(move.player == 0 for move in histories[0])


def test_the_searching_opponent_beats_the_random_one() -> None:
    """Clobber: the agent plays at random, so the opponent's strength is 1 - score."""

    def lost(opponent: str) -> float:
        total = 0.0
        for seed in range(30):
            with searches_of(50, 4):
                session = GameSession(700_000_000, seed, opponent=opponent)
            rng = random.Random(seed)
            while not session.done:
                session.play(rng.choice(session.legal_actions()))
            total += 1.0 - session.score()
        return total / 30

    assert lost("mcts") > 0.8 > lost("random")


def test_goofspiel_has_the_random_opponent_under_any_name() -> None:
    plain, named = GameSession(3, 5), GameSession(3, 5, opponent="mcts")
    for action in (0, 1, 2):
        plain.play(action)
        named.play(action)
    assert plain.state_text() == named.state_text()
    assert named.opponent == "mcts"


def test_an_unknown_opponent_is_refused_in_sequential_games() -> None:
    with pytest.raises(ConfigurationError, match="unknown opponent 'bogus' for leduc_poker"):
        GameSession(200_000_000, 0, opponent="bogus")
