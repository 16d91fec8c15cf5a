"""Health checks of HTTP servers, and the wait for one: by asking again, never by a fixed pause.

A server's reply is not looked at beyond its status line, and never followed to another host.
"""

import threading
import time
from collections.abc import Iterable

import requests

from entrypoint.console import mask_url

GRACE = 1.0
"""Seconds beyond a time-out, which bounds each wait for a socket and not their sum."""


def health_error(url: str, timeout: float) -> str:
    """Ask `url` once: "" if it answers 200, else the error in a few words."""
    with requests.Session() as session:
        session.trust_env = False  # no proxy is between a job and its own servers
        try:
            with session.get(url, timeout=timeout, allow_redirects=False, stream=True) as reply:
                status = reply.status_code
        except (requests.RequestException, ValueError) as error:  # urllib3's of a host like a..b
            cause = error.args[0] if error.args else error  # urllib3's; its reason names no URL
            return f"{mask_url(url)}: {getattr(cause, 'reason', type(error).__name__)}"
    return "" if status == 200 else f"{mask_url(url)}: HTTP {status}"


def health_errors(urls: Iterable[str], timeout: float) -> dict[str, str]:
    """`health_error` of each URL that has one, all asked at the same time.

    A thread whose server sends byte after byte, so that no time-out of a socket ends it, is left.
    """
    errors = {url: f"{mask_url(url)}: no answer in {timeout:g} s" for url in urls}

    def ask(url: str) -> None:
        errors[url] = health_error(url, timeout)

    names = {thread.name for thread in threading.enumerate()}  # that an earlier call has left
    asked = [url for url in errors if url not in names]
    threads = [threading.Thread(target=ask, args=(url,), name=url, daemon=True) for url in asked]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + GRACE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {url: text for url, text in errors.copy().items() if text}


def wait_for_answers(
    urls: Iterable[str],
    fewest: int,
    *,
    timeout: float,
    seconds: float,
    every: float,
    stop: threading.Event,
) -> dict[str, str]:
    """Ask at once, and again every `every` seconds until `fewest` of `urls` have answered.

    Returns: what is wrong with each that has not, then or when `seconds` are over or `stop` is set.
    """
    end = time.monotonic() + seconds
    silent = dict.fromkeys(urls, "not asked yet")
    enough = len(silent) - fewest
    while not stop.is_set():
        silent = health_errors(silent, timeout)
        left = end - time.monotonic()
        if len(silent) <= enough or left <= 0:
            break
        stop.wait(min(every, left))
    return silent


def health_url(server: str) -> str:
    """The health endpoint of an environment server's base URL."""
    return f"{server.rstrip('/')}/health"
