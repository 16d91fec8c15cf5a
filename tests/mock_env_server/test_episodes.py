"""Episodes that the server remembers, and for how long."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mock_env_server.episodes import Episode, EpisodeStore
from mock_env_server.quirks import Quirk
from mock_env_server.rooms import GameRoom
from mock_env_server.settings import ServerSettings
from mock_env_server.stepping import SteppedGames


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def store(clock: Clock, **limits: Any) -> EpisodeStore:
    return EpisodeStore(**{"idle_expiry_s": 100.0, "finished_kept": 3, **limits}, clock=clock)


def episode() -> Episode:
    return Episode(session=None, fixed_info={})


def test_only_the_latest_finished_episodes_are_kept() -> None:
    episodes = store(Clock())
    all_of_them = [episode() for _ in range(5)]
    for one in all_of_them:
        episodes.add(one)
        episodes.finish(one)
    found = [episodes.find(one.episode_id) is one for one in all_of_them]
    assert found == [False, False, True, True, True]


def test_leak_keeps_everything_until_it_is_stopped() -> None:
    clock = Clock()
    episodes = store(clock, leak=True)
    all_of_them = [episode() for _ in range(5)]
    for one in all_of_them:
        episodes.add(one)
        episodes.finish(one)
    clock.now = 1e6
    assert all(episodes.find(one.episode_id) is one for one in all_of_them)
    assert episodes.remove(all_of_them[0].episode_id)
    assert episodes.find(all_of_them[0].episode_id) is None


def test_an_episode_stopped_during_its_last_move_stays_gone() -> None:
    episodes = store(Clock())
    one = episode()
    episodes.add(one)
    episodes.remove(one.episode_id)
    episodes.finish(one)
    assert episodes.find(one.episode_id) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "touch", "finish", "remove"]),
            st.integers(0, 9),
            st.floats(0, 60),
        ),
        max_size=60,
    )
)
def test_nothing_outlives_its_time_and_nothing_dies_before(
    events: list[tuple[str, int, float]],
) -> None:
    clock = Clock()
    episodes = store(clock, finished_kept=100)
    known: list[Episode] = []
    touched: dict[str, float] = {}
    for kind, which, wait in events:
        clock.now += wait
        if kind == "add" or not known:
            known.append(episode())
            episodes.add(known[-1])
            touched[known[-1].episode_id] = clock.now
            continue
        chosen = known[which % len(known)]
        since = touched.get(chosen.episode_id)
        alive = since is not None and clock.now - since < 100.0
        if kind == "remove":
            assert episodes.remove(chosen.episode_id) == alive
            touched.pop(chosen.episode_id, None)
            continue
        assert (episodes.find(chosen.episode_id) is chosen) == alive
        if not alive:
            touched.pop(chosen.episode_id, None)
            continue
        touched[chosen.episode_id] = clock.now
        if kind == "finish":
            episodes.finish(chosen)


def played_out(*quirks: Quirk) -> tuple[SteppedGames, Episode]:
    """A server's games with one finished episode."""
    settings = ServerSettings(quirks=frozenset(quirks))
    games = SteppedGames(settings, GameRoom(settings))

    async def play() -> Episode:
        answer = await games.reset(0, 0, "random")
        while not answer["done"]:
            hand = answer["observation"].partition("P0 hand: ")[2].split(" ", 1)[0]
            answer = await games.step(str(int(hand) - 1), answer["episode_id"])
        found = games.episodes.find(answer["episode_id"])
        assert found is not None
        return found

    return games, asyncio.run(play())


def test_a_finished_episode_lets_go_of_its_game() -> None:
    assert played_out()[1].session is None


def test_leak_holds_on_to_the_game() -> None:
    _, episode = played_out(Quirk.LEAK)
    assert episode.session is not None
    assert episode.session.done


def test_an_expired_episode_is_answered_as_not_found() -> None:
    settings = ServerSettings(idle_expiry_s=0.0)
    games = SteppedGames(settings, GameRoom(settings))

    async def play() -> dict[str, Any]:
        answer = await games.reset(0, 0, "random")
        return await games.step("0", answer["episode_id"])

    answer = asyncio.run(play())
    assert (answer["done"], answer["truncated"]) == (True, True)
    assert answer["info"]["error"]["type"] == "episode_not_found"
    assert "idle" in answer["info"]["error"]["message"]


def test_an_idle_episode_expires_and_a_used_one_does_not() -> None:
    clock = Clock()
    episodes = store(clock)
    used, idle = episode(), episode()
    episodes.add(used)
    episodes.add(idle)
    clock.now = 60.0
    assert episodes.find(used.episode_id) is used
    clock.now = 101.0
    assert episodes.find(idle.episode_id) is None
    assert episodes.find(used.episode_id) is used
    assert not episodes.remove(idle.episode_id)
    clock.now = 202.0
    assert not episodes.remove(used.episode_id)
