"""Servers that are started here: an application, and a container image."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.environments.openenv.hosting import LocalApp, LocalImage, hosted, start
from miner.environments.openenv.server import OpenEnvServer

HEALTHY = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
"""
DOCKER = """#!{python}
import os, subprocess, sys
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
if sys.argv[1] == "run":
    if sys.argv[-1] == "missing":
        sys.exit("no such image: missing")
    port = sys.argv[sys.argv.index("--publish") + 1].split(":")[1]
    words = ["-m", "uvicorn", "--app-dir", {folder!r}, "healthy:app", "--port", port]
    out = subprocess.DEVNULL
    serving = subprocess.Popen([{python!r}, *words], stdout=out, stderr=out)
    open({pid!r}, "w").write(str(serving.pid))
if sys.argv[1] == "inspect":
    print("true")
if sys.argv[1] == "rm" and os.path.exists({pid!r}):
    os.kill(int(open({pid!r}).read()), 9)
    os.remove({pid!r})
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
    assert await server.complaint() == ""
    host.stop()
    host.stop()
    assert await server.complaint()
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


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no Python file"):
        hosted(OpenEnvSettings(app=str(tmp_path / "none.py")))
    file = str(written(tmp_path, HEALTHY))
    with pytest.raises(ConfigurationError, match="make setup-openenv"):
        hosted(OpenEnvSettings(app=file, python=tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="needs docker"):
        hosted(OpenEnvSettings(image="echo-env"))
    assert hosted(OpenEnvSettings()) is None


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of this name that serves an application in place of any image; its words."""
    written(tmp_path, HEALTHY)
    log = tmp_path / "words"
    text = DOCKER.format(
        python=sys.executable, log=str(log), folder=str(tmp_path),
        pid=str(tmp_path / "pid"),
    )  # fmt: skip
    command = written(tmp_path, text, "docker")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return log


async def test_an_image_is_run_and_removed(docker: Path) -> None:
    host = LocalImage("echo-env:latest")
    await start(host, 120.0)
    server = OpenEnvServer(host.url)
    assert await server.complaint() == ""
    host.stop()
    assert await server.complaint()
    await server.close()
    words = [line.split() for line in docker.read_text().splitlines()]  # noqa: ASYNC240
    version, cleared, run, *asked, removed = words
    assert [line[0] for line in (version, cleared, run, removed)] == ["version", "rm", "run", "rm"]
    assert {line[0] for line in asked} <= {"inspect"}
    assert run[-1] == "echo-env:latest"
    assert removed[-1] in run


async def test_an_image_that_cannot_be_had_is_named(docker: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such image: missing"):
        await start(LocalImage("missing"), 120.0)
