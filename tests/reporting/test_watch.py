"""The page on a running job: what it shows, what it survives, who may see it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from miner.cli.watch import WatchServer, plain_text
from miner.config.heartbeat import Heartbeat
from miner.config.run_files import EPISODES_FILE
from miner.environments import EpisodeTask
from miner.evaluation.results import EpisodeRecord
from miner.evaluation.statistics import Estimate
from miner.reporting import episode_log
from miner.reporting.episode_log import EpisodeLog
from miner.reporting.records import (
    LOGPROB_GAP,
    TARGET_KL,
    RecordFile,
    RecordTail,
    StepRecord,
    TrainedEpisode,
)
from miner.reporting.run_folder import RunFolder
from miner.reporting.templates import render
from miner.reporting.token_records import RowTokens, StepTokens, TokenRecords
from miner.reporting.watch import LiveRun
from miner.rollout.groups import LostEpisode
from tests.builders import build_trajectory
from tests.commands import miner, refusal
from tests.reporting.made import evaluation, lowest_replies, step

NOW = 1_700_000_100.0
SETTINGS = '[environment]\nname = "goofspiel"\nchannel = "graded"\ndeck_sizes = [8]\n'


def run_of(folder: Path, kind: str = "healthy", steps: int = 40) -> RunFolder:
    """A run that is at its step `steps`: healthy, with flat groups, or with a growing gap."""
    run = RunFolder(folder)
    for number in range(1, steps + 1):
        gap = 0.002 * 1.12**number if kind == "gap" else 0.002
        run.steps.append(
            step(number, groups=16, flat_groups=14 if kind == "flat" else 2, eta_seconds=90.0,
                 score=0.3 + number / 100, phases={"playing": 1.5, "learning": 0.5},
                 metrics={"entropy": 1.0, LOGPROB_GAP: gap})
        )  # fmt: skip
    for number in (0, 20, 40):
        gain = Estimate(mean=0.2, low=0.1, high=0.3, n=100) if number else None
        run.evaluations.append(
            evaluation("base" if number == 0 else "checkpoint", 0.3 + number / 100, step=number,
                       split="held_out", published=number != 40, difference=gain)
        )  # fmt: skip
    task = EpisodeTask("goofspiel", 0, 0)
    replies, score = lowest_replies(task)
    episode = EpisodeRecord(
        environment="goofspiel", task_id=0, seed=0, opponent="random", seat=0, deck_size=8,
        score=score, replies=tuple(replies),
    )  # fmt: skip
    RecordFile(folder / EPISODES_FILE, TrainedEpisode).append(
        TrainedEpisode(time=NOW, episode=episode)
    )
    Heartbeat(time=NOW - 3, phase="rollout", step=steps).write(folder / "heartbeat.json")
    (folder / "settings.toml").write_text(SETTINGS)
    return run


def live(folder: Path, now: float = NOW, free: int = 10**12) -> LiveRun:
    return LiveRun(folder, clock=lambda: now, free=lambda path: free)


@pytest.mark.parametrize(
    ("every", "plan"),
    [(3, "next held-out evaluation at step 42"), (500, "next held-out evaluation when training")],
)
def test_an_evaluation_is_announced_for_a_step_that_will_come(
    tmp_path: Path, every: int, plan: str
) -> None:
    run_of(tmp_path / "run")
    (tmp_path / "run/settings.toml").write_text(f"{SETTINGS}[evaluation]\nevery_steps = {every}\n")
    assert live(tmp_path / "run").view().plan[0].startswith(plan)


@pytest.mark.parametrize(
    ("at", "state", "alarm"),
    [(NOW, "sign of life just now", None), (NOW + 3600, "just now", "1:00:00 in the future")],
)
def test_a_clock_that_is_ahead_is_no_sign_of_life(
    tmp_path: Path, at: float, state: str, alarm: str | None
) -> None:
    run_of(tmp_path / "run")
    Heartbeat(time=at, phase="rollout", step=40).write(tmp_path / "run/heartbeat.json")
    view = live(tmp_path / "run").view()
    assert view.state.endswith(state)
    assert [alarm in found for found in view.alarms] == ([True] if alarm else [])


def test_a_run_is_shown_with_what_is_learned_and_how_certain_that_is(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    view = live(tmp_path / "run").view()
    assert view.alarms == []
    assert view.subject == (
        "Goofspiel with 8 cards against the random opponent, through the environment servers' own "
        "grading"
    )
    assert view.state == "playing episodes, step 40, last sign of life 0:00:03 ago"
    facts = {label: (value, detail) for label, value, detail in view.facts}
    scores = {label: facts[f"{label}, score"][0] for label in ("base", "published model")}
    assert scores == {"base": "0.300", "published model": "0.500"}, "the published, not the last"
    assert facts["newest checkpoint, score"][0] == "0.700"
    assert view.verdict.startswith("Better than its base: +0.200 [+0.100, +0.300]")
    assert facts["time left"][0] == "0:01:30"
    assert dict(view.phases) == {"playing": 0.75, "learning": 0.25}
    assert view.episodes[0].replay.rounds, "a game is drawn"
    page = render("watch.html.j2", view=view)
    assert "No alarms." in page
    assert page.count('class="marked"') == 2, "one published model, in two widths"
    text = plain_text(view)
    assert all(word in text for word in ("no alarms", "0.500", "playing 75%", "tokens/s"))


@pytest.mark.parametrize(
    ("kind", "alarm"), [("flat", "87.5% of the groups"), ("gap", "Engine and trainer disagree")]
)
def test_a_run_in_trouble_says_so_first(tmp_path: Path, kind: str, alarm: str) -> None:
    run_of(tmp_path, kind)
    view = live(tmp_path).view()
    assert alarm in view.alarms[0]
    page = render("watch_body.j2", view=view)
    assert page.index(alarm) < page.index("Better than its base") < page.index("base, score")


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([], "Not known yet whether it learns"),
        ([None, None], "No better than its base so far: none of 2 checkpoint(s)"),
        ([0.106], "Better than its base: +0.106"),
        ([0.106] * 3, "Perhaps better than its base: +0.106"),
    ],
)
def test_a_gain_is_more_than_chance_for_the_best_of_as_many(
    tmp_path: Path, gains: list[float | None], verdict: str
) -> None:
    run = RunFolder(tmp_path)
    for number, gain in enumerate([None, *gains]):
        about = gain and Estimate(mean=gain, low=gain - 0.1, high=gain + 0.1, n=100)
        run.evaluations.append(
            evaluation("checkpoint", 0.5, step=number, split="held_out",
                       published=number == 0 or bool(gain), difference=about)
        )  # fmt: skip
    assert live(tmp_path).view().verdict.startswith(verdict)


def test_silence_disk_deadline_and_servers_are_alarms(tmp_path: Path) -> None:
    run_of(tmp_path)
    (tmp_path / "settings.toml").write_text(f"[deadline]\nends_at = {NOW + 200.5}\n")
    Heartbeat(time=NOW, phase="waiting for environment servers", step=9).write(
        tmp_path / "heartbeat.json"
    )
    alarms = "\n".join(live(tmp_path, NOW + 200, free=10**9).view().alarms)
    for text in (
        "No sign of life for 0:03:20", "waiting for environment servers", "Deadline at risk",
        "Only 1.0 GB are free",
    ):  # fmt: skip
        assert text in alarms
    Heartbeat(time=NOW, phase="done", step=40).write(tmp_path / "heartbeat.json")
    ended = live(tmp_path, NOW + 200).view()
    assert (ended.alarms, ended.state) == ([], "done after step 40")


def falling(number: int) -> StepRecord:
    return step(number, score=0.4, metrics={"entropy": 2 / number**2})


def test_entropy_that_fell_is_an_alarm_unless_the_game_is_learned(tmp_path: Path) -> None:
    for number in range(1, 31):
        RunFolder(tmp_path).steps.append(falling(number))
    assert any("Entropy fell" in alarm for alarm in live(tmp_path).view().alarms)
    for number in range(31, 41):
        RunFolder(tmp_path).steps.append(step(number, score=0.95, metrics={"entropy": 0.001}))
    assert not any("Entropy fell" in alarm for alarm in live(tmp_path).view().alarms)


def test_a_run_that_begins_again_under_the_page_is_read_from_its_start(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    page = live(tmp_path / "run")
    assert "step 40" in str(page.view().facts)
    shutil.move(tmp_path / "run", tmp_path / "aside")
    assert page.view().facts == []
    run_of(tmp_path / "run", steps=7)
    facts = page.view().facts
    assert "step 7" in str(facts)
    assert "step 40" not in str([fact for fact in facts if fact[0] == "progress"])


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    tail = RecordTail(tmp_path / "metrics.jsonl", StepRecord)
    whole = step(1).model_dump_json() + "\n"
    assert not tail.refresh()
    (tmp_path / "metrics.jsonl").write_text(whole + whole[:20])
    assert tail.refresh()
    assert (len(tail.records), tail.torn) == (1, 0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(whole[20:])
    assert tail.refresh()
    assert (len(tail.records), tail.torn) == (2, 0)
    assert not tail.refresh()


def test_of_a_very_long_record_the_end_is_read_and_that_is_said(tmp_path: Path) -> None:
    run_of(tmp_path, steps=60)
    page = live(tmp_path)
    page._steps.MOST_BYTES = 5000
    view = page.view()
    assert "only the last steps are shown" in view.alarms[0]
    assert "step 60" in str(view.facts)
    assert len(page._steps.records) < 20


def test_records_of_another_version_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run_of(tmp_path)
    (tmp_path / "evaluations.jsonl").write_text('{"version": 9}\n')
    view = live(tmp_path).view()
    assert "Another version of the miner" in view.alarms[0]
    assert "evaluations.jsonl line 1" in view.alarms[0]
    assert "step 40" in str(view.facts)


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    view = live(tmp_path / "later").view()
    assert view.state == f"nothing is recorded yet at {tmp_path / 'later'}"
    assert view.subject == "something whose settings are not recorded yet"
    assert "nothing is recorded yet" in render("watch.html.j2", view=view)


def test_the_log_of_episodes_is_bounded_and_a_full_disk_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    log = EpisodeLog(tmp_path, clock=lambda: now[0])
    trajectory = build_trajectory()
    log.add(trajectory)
    log.add(trajectory)  # within the same second
    log.add(LostEpisode(trajectory.task, RuntimeError("lost"), 3))
    file = tmp_path / EPISODES_FILE
    assert len(file.read_text().splitlines()) == 1
    monkeypatch.setattr(episode_log, "MOST_BYTES", 3 * file.stat().st_size)
    for _ in range(20):
        now[0] += 1.0
        log.add(trajectory)
    assert file.stat().st_size <= episode_log.MOST_BYTES
    assert RecordFile(file, TrainedEpisode).read()[1] == 0, "whole lines alone are kept"
    file.unlink()
    file.mkdir()
    now[0] += 1.0
    log.add(trajectory)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class OneEvent(WatchServer):
    """Sends one event and goes away: a browser that waits for the network to be idle comes on."""

    async def _events(self, request: web.Request) -> web.StreamResponse:
        news = json.dumps("<p class='state'>brought by an event</p>")
        return web.Response(text=f"data: {news}\n\n", content_type="text/event-stream")


@asynccontextmanager
async def served(folder: Path, server: type[WatchServer] = WatchServer) -> AsyncIterator[str]:
    runner = web.AppRunner(server(live(folder), "secret").app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def test_games_and_opponents_are_told_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert live(tmp_path).view().played == []
    episodes = RecordFile(tmp_path / EPISODES_FILE, TrainedEpisode)
    for number, opponent in enumerate(("bid", "bid", "mcts:50")):
        episode = EpisodeRecord(
            environment="duel:othello", task_id=1, seed=2, opponent=opponent, score=number / 2
        )
        episodes.append(TrainedEpisode(time=NOW, episode=episode))
    held_out = {"duel:othello": Estimate(mean=0.4, low=0.3, high=0.5, n=50)}
    run.evaluations.append(
        evaluation("checkpoint", 0.4, step=40, split="held_out", by_game=held_out)
    )
    othello, goofspiel = live(tmp_path).view().played
    trained = "0.25 against bid (2), 1.00 against mcts:50 (1)"
    assert othello == ("othello", str(held_out["duel:othello"]), trained)
    assert goofspiel[:2] == ("goofspiel", "-")
    assert "mcts:50" in render("watch_body.j2", view=live(tmp_path).view())


DOCKER = """#!/bin/sh
case "$1" in
inspect) test "$4" = job-1 || exit 1; echo '["-m", "entrypoint", "--task-id", "{task}"]' ;;
cp) cp "{root}${{2#*:}}" "$3" ;;
esac
"""


@pytest.mark.parametrize("name", ["job-1", "job-1:/app/checkpoints/t1/.run/train"])
def test_a_containers_records_are_copied_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task = "t1" if name == "job-1" else "another"
    run_of(tmp_path / "app" / "checkpoints" / "t1" / ".run" / "train")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(root=tmp_path, task=task))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    shown = miner("watch", name, "--plain")
    assert shown.startswith("job-1: learning Goofspiel with 8 cards")
    assert "step 40" in shown
    none = miner("watch", "job-2", "--plain")
    assert "nothing is recorded yet" in none, "a run folder that is not there yet"


async def test_tokens_of_a_step_are_a_link_away(tmp_path: Path) -> None:
    run_of(tmp_path)
    task = {"task": "goofspiel", "score": 1.0, "parts": [(0, 1.0, -0.5, 0.0)]}
    rules = {"divisor": 1.0, "beta": 0.0, "clip": None, "group_size": 1, "credit": "episode"}
    ids, one = np.array([0, 1], np.int32), np.array([-0.5], np.float32)
    row = RowTokens(0, 1, ids, ids[:1], ids[:1], one, one, one[:0], one, 0, None)
    TokenRecords(tmp_path).add(StepTokens(40, rules, [task], [row], {0: "<p>", 1: "7"}))
    async with served(tmp_path) as url, aiohttp.ClientSession() as session:
        shown = {}
        for path in ("?", "explain?step=40&", "explain?step=40&episode=0&", "explain?step=9&"):
            async with session.get(f"{url}{path}token=secret") as answer:
                shown[path] = answer.status, await answer.text()
    assert "explain?token=secret&amp;step=40" in shown["?"][1]
    assert "step=40&amp;episode=0" in shown["explain?step=40&"][1]
    assert "&lt;p&gt;" in shown["explain?step=40&episode=0&"][1]
    assert shown["explain?step=9&"][0] == 404


async def test_only_the_address_with_its_token_shows_the_page(tmp_path: Path) -> None:
    run_of(tmp_path)
    async with served(tmp_path) as url, aiohttp.ClientSession() as session:
        for path, status in (("", 403), ("?token=wrong", 403), ("?token=secret", 200)):
            async with session.get(url + path) as answer:
                assert answer.status == status
                assert ("published model, score" in await answer.text()) == (status == 200)
        async with session.post(url + "?token=secret") as answer:
            assert answer.status == 405


async def test_a_page_follows_the_run_and_one_that_does_not_read_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.cli.watch.LOOK_S", 0.01)
    monkeypatch.setattr("miner.cli.watch.PATIENCE", 0.0)
    run = run_of(tmp_path)
    before = files(tmp_path)
    async with served(tmp_path) as url, aiohttp.ClientSession(read_bufsize=2**22) as session:
        events = url + "events?token=secret"
        async with session.get(events) as stuck, session.get(events) as answer:
            assert stuck.status == 200  # and nothing of it is read
            first = json.loads((await answer.content.readuntil(b"\n\n"))[6:])
            assert "step 40" in first
            assert files(tmp_path) == before, "nothing was written"
            run.steps.append(step(41, eta_seconds=1.0))
            async with asyncio.timeout(60):
                while "step 41" not in json.loads((await answer.content.readuntil(b"\n\n"))[6:]):
                    pass


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--host", "0.0.0.0", "--token", ""), "can be reached from other machines"),
        (("--port", "{taken}"), "cannot be served at 127.0.0.1"),
    ],
)
async def test_an_address_that_cannot_be_is_refused(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    async with served(tmp_path) as url:
        port = url.rpartition(":")[2].strip("/")
        given = [word.replace("{taken}", port) for word in words]
        assert sentence in await asyncio.to_thread(refusal, "watch", tmp_path, *given)


@pytest.mark.parametrize("width", [1280, 420])
async def test_a_browser_shows_what_events_bring_and_that_they_end(
    tmp_path: Path, width: int
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium is installed: the page was not tried in a browser")
    run_of(tmp_path / "run")
    async with served(tmp_path / "run", OneEvent) as url:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu",
                   "--virtual-time-budget=2000",
                   f"--window-size={width},1200", f"--user-data-dir={tmp_path / 'profile'}",
                   "--dump-dom", f"{url}?token=secret"]  # fmt: skip
        found = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=300, check=True
        )
    assert re.search("brought by an event.*lost its connection", found.stdout)


def test_the_distance_to_the_targets_has_a_chart_where_it_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=3)
    assert "Distance to the targets" not in {chart.title for chart in live(tmp_path).view().charts}
    run.steps.append(step(4, score=None, episodes=0, metrics={TARGET_KL: 0.5}))
    [chart] = (c for c in live(tmp_path).view().charts if c.title == "Distance to the targets")
    assert chart.line == [(4, 0.5)]
