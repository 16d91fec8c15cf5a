"""`python -m miner watch`: a local page on a run while it trains, or the same as text."""

import asyncio
import hmac
import json
import os
import secrets
import time
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from aiohttp import web

from miner.cli.container_records import ContainerRecords, container_named
from miner.cli.explain import OVERVIEW_HEAD, explanation
from miner.config.errors import ConfigurationError
from miner.reporting.templates import render
from miner.reporting.watch import FREE_BYTES, LiveRun, View

LOOK_S = 1.0
PATIENCE = 200.0
"""A look at the records is followed by a rest of so many times its length: the trainer has the
processor for more than 99.5% of the time."""

KEEP_ALIVE_S = 15.0


def watch_command(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="[RUN_DIR | CONTAINER]",
            help="Folder of a run, which may not be there yet; or a container of the miner, or "
            "CONTAINER:/RUN_DIR.",
        ),
    ] = Path("runs/train"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Secret in the page's address. Default: a random one.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print the state as text and end.")
    ] = False,
) -> None:
    """Watch a run learn: alarms, scores, rates, time by phase, newest episodes, what is to come.

    The page reads the run's records and nothing else: it may be opened and closed at any time, for
    a run that trains, has ended or was killed, and costs at most 0.5% of a core. A container's
    records are copied out of it by `docker cp`.

    Examples:
      python -m miner watch runs/train
      python -m miner watch goofspiel-miner-miner-1
    """
    with ExitStack() as stack:
        if not run_dir.exists() and (named := container_named(str(run_dir))):
            copies = Path(stack.enter_context(TemporaryDirectory())) / named[0]
            records = ContainerRecords(*named, copies)
            records.copy()
            if not plain:
                records.follow()
            live = LiveRun(copies, free=lambda path: FREE_BYTES)  # its disk is not this one
        else:
            live = LiveRun(run_dir)
            if not run_dir.exists() and "/" not in str(run_dir):
                typer.echo(
                    f"note: {run_dir} is no folder yet, and no container that docker names here",
                    err=True,
                )
        if plain:
            typer.echo(plain_text(live.view()))
        else:
            _watch(live, host, port, token)


def _watch(live: LiveRun, host: str, port: int, token: str | None) -> None:
    secret = secrets.token_urlsafe(12) if token is None else token
    if not secret and not _is_loopback(host):
        raise ConfigurationError(
            f"--host {host} can be reached from other machines: leave --token out, or name one"
        )
    os.nice(10)
    asyncio.run(_serve(live, host, port, secret))


def plain_text(view: View) -> str:
    """The page's contents for a terminal."""
    lines = [f"{view.name}: learning {view.subject}", view.verdict, view.state]
    lines += [f"ALARM {alarm}" for alarm in view.alarms] or ["no alarms"]
    lines += [f"{label:22} {value:>14}  {detail}" for label, value, detail in view.facts]
    lines += view.plan
    for chart in view.charts[1:]:
        lines.append(f"{chart.title:36} first {chart.line[0][1]:.3g}, last {chart.line[-1][1]:.3g}")
    if view.phases:
        lines.append("time: " + ", ".join(f"{name} {share:.0%}" for name, share in view.phases))
    lines += [" · ".join(row) for row in view.played]
    lines += [f"note: {note}" for note in view.notes]
    lines += [f"episode: {shown.headline} · {shown.description}" for shown in view.episodes]
    return "\n".join(lines)


class WatchServer:
    """The page, and its contents as server-sent events. Read-only: it answers GET alone.

    Records are read only while a page is open, by one task for all pages; a page that does not
    read blocks nothing but itself.
    """

    def __init__(self, live: LiveRun, token: str) -> None:
        self._live = live
        self._token = token
        self._body = ""
        self._next = 0.0
        self.app = web.Application(middlewares=[self._only_with_token])
        self.app.add_routes(
            [
                web.get("/", self._page),
                web.get("/events", self._events),
                web.get("/explain", self._explain),
            ]
        )

    @web.middleware
    async def _only_with_token(self, request: web.Request, handler: object) -> web.StreamResponse:
        given = request.query.get("token", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return web.Response(status=403, text="open the address that `miner watch` printed\n")
        response: web.StreamResponse = await handler(request)  # type: ignore[operator]
        return response

    async def _page(self, request: web.Request) -> web.Response:
        return _html(render("watch.html.j2", view=self._live.view(), token=self._token))

    async def _explain(self, request: web.Request) -> web.Response:
        """Of a step the tokens, as `miner explain` prints them; of one episode if it is named."""
        named = {name: request.query.get(name, "") for name in ("step", "episode")}
        step, episode = (int(v) if v.isdecimal() else None for v in named.values())
        try:
            text = await asyncio.to_thread(explanation, self._live.folder, step, episode)
        except ConfigurationError as error:
            return web.Response(status=404, text=f"{error}\n")
        count = 0 if episode is not None else len(text.splitlines()) - OVERVIEW_HEAD
        return _html(
            render("explain.html.j2", text=text, step=step, count=count, token=self._token)
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        seen, quiet_since = "", time.monotonic()
        try:
            await response.prepare(request)
            while True:
                body = self._current()
                if body != seen:
                    await response.write(f"data: {json.dumps(body)}\n\n".encode())
                    seen, quiet_since = body, time.monotonic()
                elif time.monotonic() - quiet_since > KEEP_ALIVE_S:
                    await response.write(b": nothing new\n\n")
                    quiet_since = time.monotonic()
                await asyncio.sleep(LOOK_S)
        except ConnectionResetError:
            return response  # the page was closed

    def _current(self) -> str:
        """The page's contents, not older than `PATIENCE` allows."""
        began = time.monotonic()
        if began >= self._next:
            self._body = render("watch_body.j2", view=self._live.view(), token=self._token)
            spent = time.monotonic() - began
            self._next = began + max(LOOK_S, PATIENCE * spent)
        return self._body


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})


async def _serve(live: LiveRun, host: str, port: int, token: str) -> None:
    """Until this is cancelled: an orderly end would wait minutes for pages that are open."""
    runner = web.AppRunner(WatchServer(live, token).app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigurationError(
            f"the page cannot be served at {host}:{port} ({error.strerror}): leave --port out for "
            "a free one"
        ) from None
    bound = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    print(f"watch      http://{shown}:{bound}/{f'?token={token}' if token else ''}", flush=True)
    await asyncio.Event().wait()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
