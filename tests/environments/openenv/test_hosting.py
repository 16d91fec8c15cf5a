"""A local server: started, stopped, and what is reported of one that cannot be served."""

import os
import sys
from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.environments.openenv.hosting import LocalApp, start
from miner.environments.openenv.server import OpenEnvServer

HEALTHY = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
"""
PYTHON = Path(sys.executable)


def written(folder: Path, text: str, name: str = "healthy.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


async def test_an_application_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    host = LocalApp(str(written(tmp_path, HEALTHY)), PYTHON)
    await start(host, 120.0)
    server = OpenEnvServer(host.url)
    assert await server.health_error() == ""
    assert host._process
    assert os.getpgid(host._process.pid) != os.getpgrp()  # Ctrl-C in a terminal is not for it
    host.stop()
    host.stop()
    assert await server.health_error()
    await server.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [("import nothing_like_it", "No module named 'nothing_like_it'"), ("x = 1", '"app" not found')],
)
async def test_an_application_that_cannot_be_served_leaves_its_last_words(
    tmp_path: Path, text: str, says: str
) -> None:
    host = LocalApp(str(written(tmp_path, text)), PYTHON)
    with pytest.raises(ConfigurationError, match="ended at once") as caught:
        await start(host, 120.0)
    assert says in str(caught.value).replace('\\"', '"').replace("\\'", "'")


def test_a_missing_file_or_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no Python file"):
        LocalApp(str(tmp_path / "none.py"), PYTHON)
    file = str(written(tmp_path, HEALTHY))
    with pytest.raises(ConfigurationError, match="make setup-openenv"):
        LocalApp(file, tmp_path / "python")
