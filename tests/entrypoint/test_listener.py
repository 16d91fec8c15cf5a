"""The event listener's protocol and what it stops for."""

from __future__ import annotations

import io

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.listener import EXITED, FATAL, listen, reason_to_stop
from entrypoint.outcome import Outcome


def event(name: str, payload: str) -> str:
    return f"ver:3.0 server:supervisor serial:1 eventname:{name} len:{len(payload)}\n{payload}"


@pytest.mark.parametrize(
    ("name", "program", "status"),
    [
        (EXITED, "watchdog", ExitStatus.SUPERVISOR),
        (EXITED, "trainer", None),
        (EXITED, "inference", None),
        (FATAL, "inference", None),
        (FATAL, "trainer", None),
        (FATAL, "watchdog", ExitStatus.SUPERVISOR),
        ("PROCESS_STATE_RUNNING", "watchdog", None),
    ],
)
def test_reasons_to_stop(name: str, program: str, status: ExitStatus | None) -> None:
    reason = reason_to_stop(name, {"processname": program}, critical="watchdog")
    assert (reason.status if reason else None) == status


def test_every_event_is_answered_and_the_right_one_stops() -> None:
    stream = io.StringIO(
        event(EXITED, "processname:trainer groupname:miner from_state:RUNNING expected:0 pid:7")
        + event(EXITED, "processname:watchdog groupname:miner from_state:RUNNING expected:1 pid:8")
    )
    answers, reasons = io.StringIO(), list[Outcome]()
    listen(stream, answers, "watchdog", reasons.append)
    assert answers.getvalue() == "READY\nRESULT 2\nOKREADY\nRESULT 2\nOKREADY\n"
    assert [reason.message for reason in reasons] == ["the program watchdog has ended"]
