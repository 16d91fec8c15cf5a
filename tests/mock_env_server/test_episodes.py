"""Episodes that the server remembers."""

import asyncio

from mock_env_server.episodes import Episode, EpisodeStore
from mock_env_server.rooms import GameRoom
from mock_env_server.settings import ServerSettings
from mock_env_server.stepping import SteppedGames


def episode() -> Episode:
    return Episode(session=None, fixed_info={})


def test_only_the_latest_episodes_are_kept() -> None:
    episodes = EpisodeStore(kept=3)
    all_of_them = [episode() for _ in range(5)]
    for one in all_of_them:
        episodes.add(one)
    found = [episodes.find(one.episode_id) is one for one in all_of_them]
    assert found == [False, False, True, True, True]


def test_an_episode_is_found_until_it_is_stopped() -> None:
    episodes = EpisodeStore()
    kept, stopped = episode(), episode()
    episodes.add(kept)
    episodes.add(stopped)
    assert [episodes.remove(stopped.episode_id) for _ in range(2)] == [True, False]
    assert episodes.find(kept.episode_id) is kept
    assert episodes.find(stopped.episode_id) is None
    episodes.clear()
    assert episodes.find(kept.episode_id) is None


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
    found = games.episodes.find(name)
    assert found is not None
    assert found.session is None


def test_a_forgotten_episode_is_answered_as_not_found() -> None:
    async def play() -> dict[str, object]:
        games, name = await _played_out()
        games.episodes.clear()
        return await games.step("0", name)

    answer = asyncio.run(play())
    assert (answer["done"], answer["truncated"]) == (True, True)
    assert answer["info"]["error"]["type"] == "episode_not_found"  # type: ignore[index]
