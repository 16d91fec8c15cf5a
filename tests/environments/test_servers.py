"""Server lists as people type them, and the spreading of episodes over servers."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from miner.config.contract import split_server_urls
from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError, servers
from miner.environments.listing import parse_listing
from miner.environments.servers import OnServer, ServerPool, check_server_urls

A, B, C = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        (A, (A,)),
        (f"{A},{B}", (A, B)),
        (f" {A}/ , {B},,{A}", (A, B)),
        (f"{A} {B}\n", (A, B)),
        ("https://env.example", ("https://env.example",)),
        ("http://[::1]:8000/base/", ("http://[::1]:8000/base",)),
    ],
)
def test_lists_of_servers(text: str, urls: tuple[str, ...]) -> None:
    assert check_server_urls(split_server_urls(text)) == urls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ENVIRONMENT_SERVER_URLS"),
        (" , ", "ENVIRONMENT_SERVER_URLS"),
        ("10.0.0.1:8000", "did you mean 'http://10.0.0.1:8000'"),
        ("localhost", "did you mean 'http://localhost'"),
        ("ftp://host:8000", "http://host:port"),
        ("http://:8000", "http://host:port"),
        ("http://host:99999", "http://host:port"),
        ("http://host:8000?x=1", "a query"),
        (f"{A},nonsense", "nonsense"),
    ],
)
def test_what_is_not_a_server_is_named_with_a_way_out(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_server_urls(split_server_urls(text))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@host:8000", "me:hunter2@host:8000", "http://host:1?t=hunter2"]
)
def test_secrets_in_urls_are_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_server_urls(split_server_urls(text))
    assert "hunter2" not in str(caught.value)


def test_the_least_busy_server_comes_first() -> None:
    pool = ServerPool([A, B, C])
    assert [pool.pick() for _ in range(6)] == [A, B, C, A, B, C]
    pool.release(B)
    assert pool.pick() == B
    assert pool.pick(avoid=[A, B]) == C
    assert pool.pick(avoid=[A, B, C]) in (A, B)


def test_a_failing_server_rests_ever_longer_until_it_succeeds() -> None:
    now = 0.0
    pool = ServerPool([A, B], clock=lambda: now)

    def rest_after_failure() -> float:
        nonlocal now
        pool.report_failure(A)
        pool.report_failure(A)  # of an episode that was under way at the same time
        start = now
        while True:
            picked = pool.pick()
            pool.release(picked)
            if picked == A:
                return now - start
            now += 0.5

    assert [rest_after_failure() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    pool.report_success(A)
    assert rest_after_failure() == 1


def test_a_server_that_hangs_costs_a_small_share_of_the_time() -> None:
    now, lost = 0.0, 0.0
    pool = ServerPool([A, B], clock=lambda: now)
    while now < 5400:
        picked = pool.pick()
        pool.release(picked)
        if picked == A:
            now += 60
            lost += 60
            pool.report_failure(A, 60)
        now += 1
    assert lost <= 0.1 * now


@pytest.mark.parametrize(("timed", "rests"), [(True, 300.0), (False, 1.0)])
def test_a_server_rests_by_how_long_it_was_waited_for_in_vain(
    timed: bool, rests: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(servers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pool = ServerPool([A, B], clock=lambda: now[0])
    with suppress(InfrastructureError), OnServer(pool, pool.pick())._reporting(timed=timed):
        now[0] += 30
        raise InfrastructureError("it hangs", server=A)
    pool.release(A)
    for share, picked in ((0.9, B), (1.1, A)):
        now[0] = 30 + share * rests
        assert pool.pick() == picked
        pool.release(picked)


def test_the_only_server_is_used_however_it_fails() -> None:
    pool = ServerPool([A])
    pool.report_failure(A)
    assert pool.pick(avoid=[A]) == A


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("no list", {}),
        ("Legal Actions:\n", {}),
        ("Legal Actions:\n0 -> a\n12 -> [P0]Bid: 13\n\n3 -> c", {0: "a", 12: "[P0]Bid: 13"}),
        ("Legal Actions:\n9 -> x\nLegal Actions:\n  1 -> y z \nrest", {1: "y z "}),
        ("Legal Actions:\nx -> a", {}),
        ("Legal Actions:\n1 ->", {}),
        ("Legal Actions:\n1234567890 -> a", {}),
    ],
)
def test_lists_of_actions(text: str, labels: dict[int, str]) -> None:
    assert parse_listing(text) == labels
