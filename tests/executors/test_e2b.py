"""E2B by its own client against a double of its API: results, faults, and the key."""

import asyncio
import logging
import sys
from math import ceil
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError
from miner.executors import CodeFailure, Execution, Limits
from tests.executors.e2b_double import KEY, e2b_double, printed, raised

pytest.importorskip("e2b_code_interpreter")
from miner.executors.e2b import E2BExecutor


def executor(**options: Any) -> E2BExecutor:
    return E2BExecutor(KEY, **{"request_seconds": 5.0, **options})


async def test_output_and_failures_of_code_are_results() -> None:
    result = {"type": "result", "text": "5", "is_main_result": True}
    runs = {"a": [*printed("hello\n"), result], "b": [*printed("x"), *raised("KeyError", "'k'")]}
    async with e2b_double(runs=runs):
        there = executor()
        assert await there.run("a") == Execution("hello\n5\n")
        assert await there.run("b") == Execution("x", CodeFailure("exception", "KeyError: 'k'"))
        assert await there.run("nothing") == Execution("")


@pytest.mark.parametrize(
    "error",
    [
        raised("UsageError", "Line magic function `%pi` not found.", ""),
        raised("ContextRestarting", "Context was restarted", ""),  # its kernel was killed
        raised("WebSocketError", "raised by the code"),
    ],
)
async def test_an_error_of_the_codes_own_is_its_failure(error: list[dict[str, Any]]) -> None:
    async with e2b_double(runs={"a": error}):
        failure = (await executor().run("a")).failure
    assert failure == CodeFailure("exception", "{name}: {value}".format(**error[0]))


async def test_each_run_has_a_separate_sandbox_and_leaves_none() -> None:
    async with e2b_double(runs={str(n): printed(str(n)) for n in range(8)}) as double:
        there = executor(at_once=3)
        ran = await asyncio.gather(*(there.run(str(n)) for n in range(8)))
        assert [run.output for run in ran] == [str(n) for n in range(8)]
        assert len(double.created) == 8
        assert double.at_once <= 3
        assert double.alive == set()
        assert all(box["allow_internet_access"] is False for box in double.created)
        assert {box["timeout"] for box in double.created} == {ceil(Limits().seconds) + 60}


async def test_output_is_bounded() -> None:
    async with e2b_double(runs={"a": printed("x" * 1000)}):
        ran = await executor(limits=Limits(output_bytes=100)).run("a")
        assert (len(ran.output), ran.failure and ran.failure.kind) == (100, "output")


@pytest.mark.parametrize(
    ("faults", "kind", "words"),
    [
        ({"create_status": 401}, ConfigurationError, "E2B_API_KEY"),
        ({"create_status": 403}, ConfigurationError, "refuses the key"),
        ({"create_status": 429}, InfrastructureError, "Rate limit"),
        ({"create_status": 500}, InfrastructureError, "500"),
        ({"hang": "create"}, InfrastructureError, "could not make a sandbox"),
        ({"hang": "run", "healthy": False}, InfrastructureError, "lost the sandbox"),
        ({"dies_at": "run"}, InfrastructureError, "while code ran"),
        (
            {"runs": {"run": raised("WebSocketError", "connection", "")}},
            InfrastructureError,
            "lost a",
        ),
        (
            {"runs": {"run": raised("UnexpectedEndOfExecution", "closed", "")}},
            InfrastructureError,
            "lost a run: closed",
        ),
        ({"runs": {"run": ["garbage"]}}, InfrastructureError, "failed while code ran"),
    ],
)
async def test_a_fault_of_e2b_is_typed_bounded_and_keeps_the_key(
    faults: dict[str, Any], kind: type[Exception], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with e2b_double(**faults) as double:
        there = executor(limits=Limits(seconds=0.3), request_seconds=1.0)
        with pytest.raises(kind, match=words) as told:
            await there.run("run")
        assert double.keys == {KEY}
        assert KEY not in caplog.text
        assert KEY not in "".join(map(str, [told.value, told.value.__cause__, vars(told.value)]))
        assert double.alive == set()


async def test_code_that_does_not_end_is_the_codes_failure_if_its_sandbox_answers() -> None:
    async with e2b_double(hang="run") as double:
        ran = await executor(limits=Limits(seconds=0.3)).run("run")
        assert ran.failure == CodeFailure("time", "stopped: not finished after 0.3 s")
        assert double.alive == set()


def test_without_a_key_or_the_package_an_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="set E2B_API_KEY"):
        E2BExecutor()
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", None)
    with pytest.raises(ConfigurationError, match="pip install e2b-code-interpreter"):
        E2BExecutor(KEY)
