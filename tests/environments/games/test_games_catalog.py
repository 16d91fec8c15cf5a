"""Task ids name games and their parameters."""

import pytest

from miner.config.contract import GAMES
from miner.config.errors import ConfigurationError
from miner.games import game_named, game_of


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("goofspiel", 0),
        ("liars_dice", 100_000_000),
        ("leduc_poker", 200_000_000),
        ("gin_rummy", 300_000_000),
        ("othello", 400_000_000),
        ("clobber", 700_000_000),
    ],
)
def test_ranges(name: str, first: int) -> None:
    assert game_named(name).task_ids == (first, first + 99_999_999)
    assert game_of(first).name == game_of(first + 99_999_999).name == name
    assert name in GAMES


@pytest.mark.parametrize(
    ("task_id", "name"),
    [
        # Recorded from the real server.
        (53_583_460_708, "clobber"),
        (13_506_151_311, "gin_rummy"),
        (39_778_432_585, "liars_dice"),
        (-2_200_000_000, "goofspiel"),
    ],
)
def test_blocks_repeat(task_id: int, name: str) -> None:
    assert game_of(task_id).name == name


@pytest.mark.parametrize("task_id", [500_000_000, 800_000_000, -1])
def test_other_games_are_refused(task_id: int) -> None:
    with pytest.raises(ConfigurationError, match=f"task_id {task_id} names game block"):
        game_of(task_id)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'chess' is not a game of the tournament: choose"):
        game_named("chess")


@pytest.mark.parametrize(
    ("task_id", "parameters"),
    [
        (3, {"num_cards": 14, "players": 2, "points_order": "random"}),
        (100_000_004, {"numdice": 5, "players": 2}),
        (299_999_999, {"players": 2}),
        (300_000_000, {"hand_size": 7, "knock_card": 10}),
        (300_000_008, {"hand_size": 9, "knock_card": 8}),
        (700_000_001, {"rows": 6, "columns": 6}),
        (700_000_002, {"rows": 7, "columns": 7}),
    ],
)
def test_parameters(task_id: int, parameters: dict[str, object]) -> None:
    loaded = game_of(task_id).load_server(task_id).get_parameters()
    assert {key: loaded[key] for key in parameters} == parameters


def test_equal_configurations_share_one_game() -> None:
    assert game_of(4).load_server(4) is game_of(99_999_999).load_server(99_999_999)
    assert game_of(4).load_server(4) is not game_of(3).load_server(3)
