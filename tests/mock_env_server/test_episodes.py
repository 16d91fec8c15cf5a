"""Episodes that the server remembers."""

import asyncio

import pytest

from mock_env_server.rooms import GameRoom
from mock_env_server.settings import ServerSettings
from mock_env_server.stepping import SteppedGames


def test_only_the_latest_episodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mock_env_server.stepping.KEPT", 3)

    async def play() -> list[object]:
        games = SteppedGames(ServerSettings(), GameRoom(ServerSettings()))
        names = [(await games.reset(0, 0, "random"))["episode_id"] for _ in range(5)]
        return [(await games.state(name))["truncated"] for name in names]

    assert asyncio.run(play()) == [True, True, False, False, False]


def test_an_episode_is_found_until_it_is_stopped() -> None:
    async def play() -> tuple[list[object], list[object]]:
        games = SteppedGames(ServerSettings(), GameRoom(ServerSettings()))
        kept, stopped = [(await games.reset(0, 0, "random"))["episode_id"] for _ in range(2)]
        stops = [(await games.stop(stopped))["stopped"] for _ in range(2)]
        return stops, [(await games.state(name))["truncated"] for name in (kept, stopped)]

    assert asyncio.run(play()) == ([True, False], [False, True])


async def _played_out() -> tuple[SteppedGames, str]:
    """A server's games with one finished episode."""
    settings = ServerSettings()
    games = SteppedGames(settings, GameRoom(settings))
    answer = await games.reset(0, 0, "random")
    while not answer["done"]:
        hand = answer["observation"].partition("P0 hand: ")[2].split(" ", 1)[0]
        answer = await games.step(str(int(hand) - 1), answer["episode_id"])
    return games, answer["episode_id"]


def test_a_finished_episode_lets_go_of_its_game() -> None:
    games, name = asyncio.run(_played_out())
    found = games.episodes[name]
    assert (found.done, found.session) == (True, None)


def test_a_forgotten_episode_is_answered_as_not_found() -> None:
    async def play() -> dict[str, object]:
        games, name = await _played_out()
        games.episodes.clear()
        return await games.step("0", name)

    answer = asyncio.run(play())
    assert (answer["done"], answer["truncated"]) == (True, True)
    assert answer["info"]["error"]["type"] == "episode_not_found"  # type: ignore[index]
