"""The probe on servers of every kind: what it finds, what it recommends, that it never hangs."""

import asyncio
import gc
import io
import json
from dataclasses import asdict

import pytest
from rich.console import Console

from miner.config.errors import ConfigurationError
from miner.distributed.launch import free_port
from miner.environments import EpisodeTask, InfrastructureError
from miner.environments.games import PromptFormat
from miner.environments.graded_endpoint import ChatEndpoint
from miner.environments.probe import open_source, probe
from miner.environments.probe_report import ProbeReport, ServerFindings
from miner.environments.servers import check_server_urls
from mock_env_server.app import API_VERSION
from mock_env_server.running import running_server
from mock_env_server.wording import API_TITLE
from tests.environments.playing import lowest, play_on
from tests.environments.raw_server import http, raw_server
from tests.environments.tiny_grader import WORDING, Lies, tiny_grader
from tests.mock_env_server.http import injected, set_faults


@pytest.fixture
def dead_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_a_server_that_is_untrue_on_step_is_trained_on_through_evaluate(
    faithful_url: str,
) -> None:
    report = await probe([faithful_url])
    (server,) = report.servers
    assert server.step_asked == 50
    assert server.action_applied_rate is not None
    assert server.action_applied_rate < 0.6
    assert (server.problem, server.step_problem, server.graded_problem) == ("", "", "")
    assert (server.api_title, server.api_version) == (API_TITLE, API_VERSION)
    assert f"{API_TITLE}, version {API_VERSION}" in shown(report, width=120)
    assert server.builtin_matches is True
    assert report.channel == "graded"
    assert f"({server.action_applied_rate:.0%} of actions applied as asked)" in report.reason


async def test_a_server_that_is_true_on_step_is_trained_on_through_step(correct_url: str) -> None:
    report = await probe([correct_url])
    assert report.servers[0].action_applied_rate == 1.0
    assert report.channel == "step"


async def test_the_graders_wording_is_learned_to_the_byte() -> None:
    async with tiny_grader() as grader:
        report = await probe([grader.url])
    (server,) = report.servers
    assert server.prompt_format == WORDING
    assert server.builtin_matches is True
    assert (server.api_title, server.api_version) == ("", "")
    assert "HTTP 404" in server.step_problem
    assert report.channel == "graded"


async def test_a_grader_that_differs_from_the_builtin_game_is_noticed() -> None:
    async with tiny_grader(Lies(play_lowest=True)) as grader:
        report = await probe([grader.url])
    assert report.servers[0].builtin_matches is False
    assert "in-process" in report.servers[0].builtin_difference


async def test_dead_hanging_and_good_servers_side_by_side(dead_url: str, faithful_url: str) -> None:
    async with raw_server(lambda path, body: None) as hanging:
        async with asyncio.timeout(20):
            report = await probe([dead_url, hanging.url, faithful_url], limit_s=5.0)
    dead, hung, good = report.servers
    assert "check that an affinetes environment server is running" in dead.problem
    assert "did not answer in time" in hung.problem
    assert good.problem == ""
    assert report.usable("graded") == (faithful_url,)
    assert report.channel == "graded"


async def test_a_server_that_hangs_later_costs_only_the_limit(unreliable_url: str) -> None:
    await set_faults(unreliable_url, "/step", "/evaluate", rates={"hang": 1.0})
    async with asyncio.timeout(20):
        report = await probe([unreliable_url], limit_s=2)
    (server,) = report.servers
    assert server.problem == ""
    assert "did not" in server.step_problem
    assert "reach this machine at http://127.0.0.1:" in server.graded_problem
    assert report.channel == "builtin"
    assert "our own words" in report.reason


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("http_500", 0), ("drop_request", 1), ("drop_reply", 2), ("truncated_json", 2)],
)
async def test_passing_failures_are_no_findings(
    unreliable_url: str, caplog: pytest.LogCaptureFixture, kind: str, seed: int
) -> None:
    await set_faults(unreliable_url, "/evaluate", "/openapi.json", rates={kind: 0.3}, seed=seed)
    report = await probe([unreliable_url])
    (server,) = report.servers
    assert (await injected(unreliable_url))[kind] > 0, "choose another seed"
    assert (server.problem, server.graded_problem, server.step_problem) == ("", "", "")
    assert server.graded_episodes == 2
    assert server.builtin_matches is True
    gc.collect()  # what was left open complains when it is collected
    assert "Unclosed" not in caplog.text


async def test_a_channel_on_which_no_game_can_be_finished_is_not_recommended(
    unreliable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await set_faults(unreliable_url, "/step", "/evaluate", rates={"http_500": 0.3})
    report = await probe([unreliable_url])
    (server,) = report.servers
    assert "/step failed with HTTP 500" in server.step_problem
    assert server.action_applied_rate == 1.0
    assert server.graded_problem == ""
    assert report.channel == "graded"
    assert "/step plays no game to its end (100% of actions applied as asked)" in report.reason
    gc.collect()
    assert "Unclosed" not in caplog.text


@pytest.mark.parametrize(("delay_ms", "limit_s", "judged"), [(150, 2.0, True), (2500, 4.0, False)])
async def test_a_slow_server_is_judged_by_what_it_played_in_time(
    unreliable_url: str, delay_ms: float, limit_s: float, judged: bool
) -> None:
    await set_faults(unreliable_url, "/reset", "/step", latency_ms=delay_ms)
    report = await probe([unreliable_url], limit_s=limit_s)
    (server,) = report.servers
    assert server.step_asked < 50
    assert (server.action_applied_rate == 1.0) is judged
    assert (server.step_problem == "") is judged
    assert report.channel == ("step" if judged else "graded")


async def test_patience_waits_for_a_server_that_is_still_starting(dead_url: str) -> None:
    probing = asyncio.create_task(probe([dead_url], patience_s=60))
    async with raw_server(lambda path, body: http(b"{}", 404), int(dead_url.rpartition(":")[2])):
        report = await probing
    assert report.servers[0].problem == ""


async def test_patience_waits_for_games_that_fail_for_a_while(
    unreliable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await set_faults(unreliable_url, "/reset", "/evaluate", rates={"http_500": 1.0})
    probing = asyncio.create_task(probe([unreliable_url], patience_s=60))
    while "asking again" not in caplog.text and not probing.done():  # noqa: ASYNC110 (it sets no event)
        await asyncio.sleep(0.05)
    await set_faults(unreliable_url)
    report = await probing
    assert report.channel != "builtin"  # which of the two depends on when the faults end


async def test_games_that_a_server_plays_slowly_get_more_time(unreliable_url: str) -> None:
    await set_faults(unreliable_url, "/reset", "/step", "/evaluate", latency_ms=500)
    assert (await probe([unreliable_url], limit_s=0.4)).channel == "builtin"
    assert (await probe([unreliable_url], limit_s=0.4, patience_s=60)).channel != "builtin"


async def test_a_server_that_is_slow_beside_a_usable_one_is_asked_again(
    faithful_url: str, unreliable_url: str
) -> None:
    await set_faults(unreliable_url, "/reset", "/step", "/evaluate", latency_ms=1500)
    urls = [faithful_url, unreliable_url]
    assert (await probe(urls, limit_s=1.2)).usable("graded") == (faithful_url,)
    report = await probe(urls, limit_s=1.2, patience_s=60)
    assert set(report.usable("graded")) == set(urls)


async def test_a_wait_for_a_dead_server_is_announced(
    dead_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await probe([dead_url], patience_s=1)
    (line,) = [record.message for record in caplog.records if "waiting" in record.message]
    assert dead_url in line
    assert "waiting for it, up to 1 s" in line


async def test_a_place_where_the_server_cannot_reach_us_is_named(
    faithful_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(self: ChatEndpoint, exchange: object, server: str) -> str:
        return "http://no-such-host.invalid:1/key/v1"

    monkeypatch.setattr(ChatEndpoint, "base_url", elsewhere)
    report = await probe([faithful_url], limit_s=1.5)
    (server,) = report.servers
    assert "reach this machine at http://no-such-host.invalid:" in server.graded_problem
    assert server.prompt_format is None
    assert report.channel == "builtin"


async def test_other_games_can_be_probed(correct_url: str) -> None:
    report = await probe([correct_url], "leduc_poker")
    (server,) = report.servers
    assert server.step_problem == ""
    assert server.builtin_matches is True
    assert server.prompt_format is not None
    assert server.prompt_format.game_name == "leduc_poker"
    assert report.channel == "graded"


async def test_an_unknown_game_is_named_in_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match="chess") as caught:
        await probe(["http://10.0.0.1:8000"], "chess")
    assert "\n" not in str(caught.value)


def finding(url: str, rate: float | None, graded: bool, **more: object) -> ServerFindings:
    asked = 0 if rate is None else 100
    return ServerFindings(
        url,
        step_asked=asked,
        step_applied=round(asked * (rate or 0.0)),
        step_problem="" if rate is not None else "step is down",
        graded_episodes=2 if graded else 0,
        graded_problem="" if graded else "evaluate is down",
        prompt_format=PromptFormat.own("goofspiel") if graded else None,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("servers", "channel", "usable"),
    [
        ([finding("a", 1.0, True)], "step", ("a",)),
        ([finding("a", 1.0, False)], "step", ("a",)),
        ([finding("a", 0.99, True)], "graded", ("a",)),
        ([finding("a", None, True)], "graded", ("a",)),
        ([finding("a", 0.3, False)], "builtin", ()),
        ([finding("a", None, False)], "builtin", ()),
        ([finding("a", 1.0, True), finding("b", 1.0, True)], "step", ("a", "b")),
        ([finding("a", 1.0, True), finding("b", 0.3, True)], "graded", ("a", "b")),
        ([finding("a", 1.0, True), finding("b", None, False)], "step", ("a",)),
        ([finding("a", 0.3, False), finding("b", 0.3, True)], "graded", ("b",)),
        ([finding("a", 1.0, True, problem="down")], "builtin", ()),
        ([], "builtin", ()),
    ],
)
def test_the_recommendation_follows_from_the_findings(
    servers: list[ServerFindings], channel: str, usable: tuple[str, ...]
) -> None:
    report = ProbeReport("goofspiel", tuple(servers))
    assert report.channel == channel
    assert report.usable(report.channel) == usable
    graders_words = any(server.prompt_format for server in servers)
    assert bool(report.warning) is bool(servers and (channel == "builtin" or not graders_words))
    assert report.reason
    forced = report.findings("builtin")
    assert (forced.channel, forced.warning) == ("builtin", "")
    assert forced.reason == f"by environment.channel; auto: {channel}, as {report.reason}"


async def test_reports_are_data_and_a_table(faithful_url: str, dead_url: str) -> None:
    report = await probe([faithful_url, dead_url])
    data = json.loads(json.dumps(report.findings().to_json()))
    assert data["channel"] == "graded"
    assert data["reason"] == report.reason
    assert data["servers"][0]["action_applied_rate"] == report.servers[0].action_applied_rate
    assert report.prompt_format is not None
    stored = data["servers"][0]["prompt_format"]
    assert stored == json.loads(json.dumps(asdict(report.prompt_format)))
    text = shown(report, width=300)
    for words in (faithful_url, dead_url, "channel graded", "2 in ", "of 50"):
        assert words in text


def shown(report: ProbeReport, width: int) -> str:
    """The report as a terminal of `width` columns shows it."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.findings().shown())
    return console.export_text()


def test_a_long_failure_is_shown_in_whole_below_a_flat_table() -> None:
    url = "http://10.0.0.5:8000"
    failure = f"{url}/step failed with HTTP 500: " + "'no room left in the engine' " * 4
    failing = finding(url, 0.4, True, latency_ms=3.0)
    failing.step_problem = failure.strip()
    text = shown(ProbeReport("goofspiel", (failing,)), width=80)
    (row,) = [line for line in text.splitlines() if "3 ms" in line]
    assert url in row
    assert "40% of 100, failed" in row
    assert failure.strip() in " ".join(text.split())


@pytest.mark.parametrize("channel", ["auto", "step", "graded", "builtin"])
async def test_sources_are_opened_with_the_graders_wording(correct_url: str, channel: str) -> None:
    found = await probe([correct_url])
    found.servers[0].prompt_format = WORDING
    source, report = await open_source([correct_url], channel, report=found)
    played = await play_on(source, EpisodeTask("goofspiel", 0, 0), lowest)
    await source.close()
    assert report is found
    assert source.name == ("step" if channel == "auto" else channel)
    if channel != "graded":  # which shows the server's own words
        assert played.shown[0][0] == WORDING.system_message()


async def test_no_channel_is_opened_that_cannot_play(dead_url: str) -> None:
    for channel in ("step", "graded"):
        with pytest.raises(InfrastructureError, match="choose the channel auto or builtin"):
            await open_source([dead_url], channel)
    source, report = await open_source([dead_url])
    assert source.name == "builtin"
    assert dead_url in report.reason
    source, report = await open_source([], "builtin")
    assert (source.name, report.servers) == ("builtin", ())


async def test_an_untrue_step_channel_can_be_forced(faithful_url: str) -> None:
    source, report = await open_source([faithful_url], "step")
    await source.close()
    assert (source.name, report.channel) == ("step", "graded")


async def test_a_real_start_from_the_environment_variable() -> None:
    with running_server("faithful") as one, running_server("faithful") as two:
        urls = check_server_urls([one.base_url, f"{two.base_url}/"])
        source, report = await open_source(urls)
        tasks = [EpisodeTask("goofspiel", 5 * seed, seed) for seed in range(16)]
        opened = [source.open() for _ in tasks]
        servers = {environment.server for environment in opened}
        played = await asyncio.gather(*(play_on(source, task, lowest) for task in tasks))
        await source.close()
    assert servers == set(urls)
    assert source.capacity == 96
    assert len({episode.score for episode in played}) > 1
    assert report.notes == ()
