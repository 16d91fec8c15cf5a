"""Functions of the user's that do not return are named."""

import threading
from pathlib import Path

import pytest

from miner.environments.own import slow_calls
from miner.environments.own.entry import load_function
from miner.environments.own.slow_calls import SlowCalls


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings, where each call takes long from the start."""
    said = list[str]()
    monkeypatch.setattr(slow_calls.logger, "warning", lambda form, *of: said.append(form % of))
    monkeypatch.setattr(slow_calls, "SECONDS", 0.0)
    monkeypatch.setattr(SlowCalls, "_look_later", lambda self: None)
    return said


def test_a_call_that_has_not_returned_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[SlowCalls]()

    def later(slow: SlowCalls) -> None:
        calls.append(slow)
        slow._timer = threading.Timer(60, slow.look)  # never started

    monkeypatch.setattr(SlowCalls, "_look_later", later)
    file = tmp_path / "idea.py"
    file.write_text("def credit(then):\n    then()\n    return 1.5\n")
    credit = load_function(str(file), "reward.entry", "credit(group)")
    assert credit(lambda: calls[0].look()) == 1.5
    assert words == [f"reward.entry '{file}' has not returned in 0 s: the run waits for it"]
    calls[0].look()  # after it
    assert len(words) == 1
    credit(lambda: calls[1].look())  # it looks again
    assert len(words) == 2


def test_calls_that_take_less_are_not(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_calls, "SECONDS", 3600.0)
    slow = SlowCalls("mine")
    with slow:
        slow.look()
    slow.look()
    assert not words


def test_it_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_calls, "SECONDS", 0.0)
    said = threading.Event()
    monkeypatch.setattr(slow_calls.logger, "warning", lambda *_: said.set())
    with SlowCalls("mine"):
        assert said.wait(60)
