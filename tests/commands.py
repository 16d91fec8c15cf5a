"""`python -m miner` within the test's process, as a user types it."""

from unittest import mock

import pytest
from typer.testing import CliRunner

from miner.__main__ import app, main
from miner.config.errors import ConfigurationError


def miner(*words: object, status: int = 0) -> str:
    """Output of a command that ends with `status`. Raises: what the command raises."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def status_of(*words: object) -> int:
    """Exit status of `main` with these words; its output is the process's own."""
    argv = ["miner", *map(str, words)]
    with mock.patch("sys.argv", argv), pytest.raises(SystemExit) as ended:
        main()
    status = ended.value.code or 0
    assert isinstance(status, int)
    return status


def refusal(*words: object) -> str:
    """The sentence with which a command refuses."""
    with pytest.raises(ConfigurationError) as caught:
        miner(*words)
    return str(caught.value)
