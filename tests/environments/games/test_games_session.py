"""Sessions of all games; tests/mock_env_server/test_modes.py has streams, rules and scores."""

from __future__ import annotations

import random

import pytest

from miner.config.contract import GAMES, LARGEST_SEED
from miner.config.errors import ConfigurationError
from miner.environments.games import CHANCE, GameSession
from miner.environments.games.opponents import Stream
from miner.games import game_named


def test_an_illegal_action_changes_nothing() -> None:
    session = GameSession(0, 0)
    session.play(3)
    before = session.state_text()
    with pytest.raises(ValueError, match="action 3 is not legal in goofspiel task 0 seed 0"):
        session.play(3)
    assert session.state_text() == before
    assert len([move for move in session.history if move.player != CHANCE]) == 2


def test_nothing_can_be_played_after_the_end() -> None:
    session = GameSession(0, 0)
    while not session.done:
        session.play(session.legal_actions()[0])
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
        session = GameSession(
            first, 7, opponent="mcts", mcts_max_simulations=10, mcts_num_rollouts=1
        )
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
            session = GameSession(
                700_000_000, seed, opponent=opponent, mcts_max_simulations=50, mcts_num_rollouts=4
            )
            rng = random.Random(seed)
            while not session.done:
                session.play(rng.choice(session.legal_actions()))
            total += 1.0 - session.score()
        return total / 30

    assert lost("mcts") > 0.8 > lost("random")


def test_an_unknown_opponent_is_refused_in_sequential_games() -> None:
    with pytest.raises(ConfigurationError, match="unknown opponent 'bogus' for leduc_poker"):
        GameSession(200_000_000, 0, opponent="bogus")
