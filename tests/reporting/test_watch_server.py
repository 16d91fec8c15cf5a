"""The page on a running job: who may see it, what follows the run, and runs in containers."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from miner.cli import watch
from miner.cli.container_records import ContainerRecords
from miner.cli.watch import WatchServer
from miner.reporting.token_records import RowTokens, StepTokens, TokenRecords
from tests.commands import miner, refusal
from tests.reporting.live_run import live, run_of
from tests.reporting.made import step


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class OneEvent(WatchServer):
    """Sends one event and goes away: a browser that waits for the network to be idle comes on.
    Its page has an episode open, which the event does not have."""

    async def _page(self, request: web.Request) -> web.Response:
        page = await super()._page(request)
        assert isinstance(page.text, str)
        opened = "<script>document.querySelector('#episodes details').open = true</script></main>"
        page.text = page.text.replace("</main>", opened)
        return page

    async def _events(self, request: web.Request) -> web.StreamResponse:
        news = json.dumps("<p class='state'>brought by an event</p><section id='episodes'/>")
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


DOCKER = """#!/bin/sh
case "$1" in
inspect)
  test "$4" = job-1 || exit 1
  echo '["-m", "entrypoint", "--task-id={task}", "--expected-repo-name", "r"]' ;;
cp)
  test -e "{root}${{2#*:}}" || {{ echo "Could not find the file ${{2#*:}}" >&2; exit 1; }}
  cp "{root}${{2#*:}}" "$3" ;;
esac
"""


@pytest.mark.parametrize("name", ["job-1", "job-1:/app/checkpoints/t1/.run-r/train"])
def test_a_containers_records_are_copied_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task = "t1" if name == "job-1" else "another"
    run = tmp_path / "app" / "checkpoints" / "t1" / ".run-r" / "train"
    run_of(run)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(root=tmp_path, task=task))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    monkeypatch.chdir(tmp_path)
    shown = miner("watch", name, "--plain")
    assert shown.startswith("job-1: learning Goofspiel with 8 cards")
    assert "step 40" in shown
    assert " are free" not in shown, "this machine's disk is not the container's"
    copies = ContainerRecords("job-1", name.partition(":")[2] or None, tmp_path / "copies")
    copies.copy()
    for left in (run / "metrics.jsonl", run / "evaluations.jsonl"):
        left.unlink()  # the run was removed, and another begun
    copies.copy()
    assert not {"metrics.jsonl", "evaluations.jsonl"} & files(tmp_path / "copies").keys()
    assert (tmp_path / "copies" / "settings.toml").exists()
    docker.write_text("#!/bin/sh\necho 'no such container' >&2; exit 1")
    copies.copy()
    assert (tmp_path / "copies" / "settings.toml").exists()
    docker.write_text(DOCKER.format(root=tmp_path, task=task))
    none = miner("watch", "job-2", "--plain")
    assert "nothing is recorded yet" in none, "a run folder that is not there yet"
    assert "job-2 is no folder yet, and no container" in none


async def test_tokens_of_a_step_are_a_link_away(tmp_path: Path) -> None:
    run_of(tmp_path)
    task = {"task": "goofspiel", "score": 1.0, "parts": [(0, 1.0, -0.5)]}
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


async def test_a_page_follows_the_run_and_one_that_does_not_read_stops_no_other(
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


async def test_the_end_does_not_wait_for_pages_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an orderly end of the server does, for two minutes."""
    up, ends = asyncio.Event(), list[object]()

    async def start(site: web.TCPSite) -> None:
        up.set()

    async def end(runner: web.AppRunner) -> None:
        ends.append(runner)

    monkeypatch.setattr(web.TCPSite, "start", start)
    monkeypatch.setattr(web.AppRunner, "addresses", [("127.0.0.1", 1)])
    monkeypatch.setattr(web.AppRunner, "cleanup", end)
    serving = asyncio.create_task(watch._serve(live(tmp_path), "127.0.0.1", 0, "secret"))
    await up.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert ends == []


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
    assert re.search('<section id="episodes">.*<details [^>]*open=""', found.stdout, re.DOTALL)
