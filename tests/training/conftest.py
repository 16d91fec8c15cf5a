"""Shared by training tests: runs in this process, and the command."""

import pytest

from tests.commands import status_of
from tests.training.in_process import working_in


@pytest.fixture
def work(tmp_path):
    with working_in(tmp_path) as work:
        yield work


@pytest.fixture
def train(monkeypatch, capsys):
    """Run a command in this process: its status, and what it printed."""

    def train(*arguments, command="train", **environ):
        monkeypatch.delenv("ENVIRONMENT_SERVER_URLS", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return status_of(command, *arguments), capsys.readouterr()

    return train
