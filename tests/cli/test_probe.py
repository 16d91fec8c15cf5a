"""`python -m miner probe` as a person or a script runs it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mock_env_server.settings import ServerSettings
from tests.commands import status_of
from tests.served import serve_in_thread

DEAD = "http://127.0.0.1:1"
OPENENV = ("environment.channel=openenv", "environment.openenv.max_turns=1")


@pytest.fixture(scope="module")
def faithful_url() -> Iterator[str]:
    with serve_in_thread(ServerSettings(mode="faithful")) as url:
        yield url


@pytest.fixture
def miner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line within this process: (exit status, standard output, standard error)."""

    def run(*words: str, servers: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv("ENVIRONMENT_SERVER_URLS", servers)
        monkeypatch.setenv("COLUMNS", "200")
        return status_of(*words), *capsys.readouterr()

    return run


def test_a_server_that_plays_other_cards_is_found_out_and_graded_games_are_advised(
    miner, faithful_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "findings.json"
    status, out, _ = miner(
        "probe", f"environment.servers={faithful_url}", "--json", str(file), "--limit", "60"
    )
    assert status == 0
    assert faithful_url in out
    assert "graded" in out
    findings = json.loads(file.read_text())
    assert findings["channel"] == "graded"
    (server,) = findings["servers"]
    assert server["url"] == faithful_url
    assert server["action_applied_rate"] < 0.6


def test_duels_ask_for_the_model_to_look_at(miner) -> None:
    status, _, err = miner("probe", "environment.channel=duel")
    assert status == 2
    assert "model.path is not set" in err


def test_findings_go_to_standard_output_alone_and_servers_come_from_the_variable(
    miner, faithful_url: str
) -> None:
    status, out, _ = miner(
        "probe", "--json", "-", "--limit", "60", servers=f"{DEAD},{faithful_url}"
    )
    assert status == 0
    findings = json.loads(out)
    assert [server["url"] for server in findings["servers"]] == [DEAD, faithful_url]
    assert findings["servers"][0]["problem"]
    assert findings["channel"] == "graded"


def test_servers_that_are_all_dead_fail_with_a_way_out(miner) -> None:
    status, _, told = miner("probe", f"environment.servers={DEAD}")
    assert status == 69
    (sentence,) = [line for line in told.splitlines() if line.startswith("error:")]
    assert "none of the servers can be trained on" in sentence
    assert "python -m mock_env_server" in sentence


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "environment.servers=http://host:port, or set ENVIRONMENT_SERVER_URLS"),
        (("environment.servers=localhost:8000",), "http://localhost:8000"),
        ((f"environment.servers={DEAD}", "environment.name=chess"), "chess"),
    ],
)
def test_what_cannot_be_probed_is_refused_by_name(miner, words: tuple[str, ...], told: str) -> None:
    status, _, sentence = miner("probe", *words)
    assert status == 2
    assert told in sentence
    assert "Traceback" not in sentence


def test_a_dead_openenv_server_is_waited_for_aloud_and_for_seconds(miner) -> None:
    status, out, err = miner("probe", *OPENENV, f"environment.servers={DEAD}", "--limit", "0.5")
    assert status == 69
    first, last = err.splitlines()
    assert first == (
        f"waiting for {DEAD} to answer, up to 0.5 s, and up to 30 s for each of its replies"
    )
    assert last.startswith(f"error: no OpenEnv server answers within 0.5 s ({DEAD}")
    assert out == ""


def test_seconds_that_are_set_are_waited_for(miner) -> None:
    waits = ("environment.openenv.start_seconds=0.6", f"environment.servers={DEAD}")
    status, _, err = miner("probe", *OPENENV, *waits)
    assert status == 69
    assert "no OpenEnv server answers within 0.6 s" in err


def test_an_openenv_file_that_is_not_there_is_named_at_once(miner) -> None:
    words = ("environment.channel=openenv", "environment.openenv.app=nofile.py")
    status, _, err = miner("probe", *words)
    assert status == 2
    assert "nofile.py: there is no such file" in err
    assert "waiting" not in err
