"""`python -m miner agent`, as a person types it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from miner.__main__ import app
from miner.config.errors import ConfigurationError


def test_each_prompt_is_answered(model: Path) -> None:
    asked = ["--prompt", "6 times 7 ?", "--prompt", "6 plus 7 ?", "--max-tokens", "8"]
    ended = CliRunner().invoke(app, ["agent", "--model", str(model), *asked])
    assert ended.exit_code == 0, ended.output
    assert "> 6 times 7 ?\n" in ended.output
    assert "> 6 plus 7 ?\n" in ended.output


def test_without_a_key_e2b_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    given = ["agent", "--model", str(model), "--prompt", "6 times 7 ?", "--executor", "e2b"]
    ended = CliRunner().invoke(app, given)
    assert isinstance(ended.exception, ConfigurationError)
    assert "set E2B_API_KEY" in str(ended.exception)
