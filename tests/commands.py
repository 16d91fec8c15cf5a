"""`python -m miner` within the test's process, as a user types it."""

import pytest
from typer.testing import CliRunner

from miner.__main__ import app
from miner.config.errors import ConfigurationError


def miner(*words: object, status: int = 0) -> str:
    """Output of a command that ends with `status`. Raises: what the command raises."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def refusal(*words: object) -> str:
    """The sentence with which a command refuses."""
    with pytest.raises(ConfigurationError) as caught:
        miner(*words)
    return str(caught.value)
