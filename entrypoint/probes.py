"""Whether an HTTP server answers, and waiting for it by asking again: never by a fixed pause.

A server's reply is not looked at beyond its status line, and never followed to another host.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from entrypoint.masking import mask_url


def complaint(url: str, timeout: float) -> str:
    """Ask `url` once: "" if it answers 200, else what is wrong, in a few words."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        try:
            connection.request("GET", parts.path or "/")
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{mask_url(url)}: {type(error).__name__}: {error}"
    return "" if status == 200 else f"{mask_url(url)}: HTTP {status}"


def complaints(urls: Iterable[str], timeout: float) -> dict[str, str]:
    """`complaint` of each URL that has one, all asked at the same time."""
    urls = list(urls)
    with ThreadPoolExecutor(max_workers=max(1, min(16, len(urls)))) as pool:
        said = pool.map(lambda url: complaint(url, timeout), urls)
        return {url: text for url, text in zip(urls, said, strict=True) if text}


def poll(
    done: Callable[[], bool],
    *,
    seconds: float,
    every: float,
    stop: threading.Event,
) -> bool:
    """Ask `done` at once and then every `every` seconds until it is true.

    Returns: its last answer; False when `seconds` are over or `stop` is set.
    """
    end = time.monotonic() + seconds
    while not stop.is_set():
        if done():
            return True
        left = end - time.monotonic()
        if left <= 0:
            return False
        stop.wait(min(every, left))
    return False


def health_url(server: str) -> str:
    """The health endpoint of an environment server's base URL."""
    return f"{server.rstrip('/')}/health"
