"""The event listener's protocol and what it stops for."""

import io
from itertools import starmap

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.listener import EXITED, FATAL, listen
from entrypoint.outcome import Outcome


def event(name: str, program: str) -> str:
    payload = f"processname:{program} groupname:miner from_state:RUNNING expected:0 pid:7"
    return f"ver:3.0 server:supervisor serial:1 eventname:{name} len:{len(payload)}\n{payload}"


def test_every_event_is_answered_and_the_end_of_the_critical_program_stops() -> None:
    seen = [
        (EXITED, "trainer"),
        (FATAL, "inference"),
        ("PROCESS_STATE_RUNNING", "watchdog"),
        (EXITED, "watchdog"),
        (FATAL, "watchdog"),
    ]
    stream = io.StringIO("".join(starmap(event, seen)))
    answers, reasons = io.StringIO(), list[Outcome]()
    listen(stream, answers, "watchdog", reasons.append)
    assert answers.getvalue() == "READY\nRESULT 2\nOK" * len(seen) + "READY\n"
    assert [reason.message for reason in reasons] == [
        "the program watchdog has ended",
        "the program watchdog cannot be started; see supervisord.log",
    ]
    assert {reason.status for reason in reasons} == {ExitStatus.SUPERVISOR}


def test_an_end_is_acknowledged_only_when_it_was_acted_upon() -> None:
    """supervisord sends an event again that a listener died of, and no other."""
    answers = io.StringIO()

    def killed(reason: Outcome) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        listen(io.StringIO(event(EXITED, "watchdog")), answers, "watchdog", killed)
    assert answers.getvalue() == "READY\n"
