"""supervisord's event listener: stops everything when the critical program has ended.

supervisord itself continues when a program dies. This listener (protocol: supervisord.org, "Event
Listeners") sends it SIGTERM when the critical program has exited, however it exited, or could not
be started at all. The critical program, the watchdog, decides about all others.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from supervisor.childutils import get_headers, listener

from entrypoint.exit_status import ExitStatus
from entrypoint.outcome import Outcome, write_outcome

EXITED, FATAL = "PROCESS_STATE_EXITED", "PROCESS_STATE_FATAL"


def reason_to_stop(event: str, payload: dict[str, str], critical: str) -> Outcome | None:
    """Reason for which this event ends the run, None if it does not."""
    if payload.get("processname") != critical or event not in (EXITED, FATAL):
        return None
    what = "has ended" if event == EXITED else "cannot be started; see supervisord.log"
    return Outcome(ExitStatus.SUPERVISOR, f"the program {critical} {what}")


def listen(events: TextIO, answers: TextIO, critical: str, stop: Callable[[Outcome], None]) -> None:
    """Answer supervisord's events until it closes the stream; call `stop` with each reason."""
    while True:
        try:
            header, payload = listener.wait(events, answers)
        except KeyError:  # no header but the end of the stream
            return
        reason = reason_to_stop(header["eventname"], get_headers(payload), critical)
        if reason is not None:  # first: an event that is acknowledged does not come again
            stop(reason)
        listener.ok(answers)


def main() -> None:
    """Entry point of the program that supervisord starts."""
    parser = argparse.ArgumentParser(prog="python -m entrypoint.listener")
    parser.add_argument("--critical", required=True, help="program whose end ends everything")
    parser.add_argument("--outcome", required=True, type=Path, help="where to leave the reason")
    arguments = parser.parse_args()

    def stop(reason: Outcome) -> None:
        print(f"listener: {reason.message}: stopping all programs", file=sys.stderr, flush=True)
        with suppress(OSError):  # a full disk must not keep anything running
            write_outcome(arguments.outcome, reason)
        os.kill(os.getppid(), signal.SIGTERM)

    listen(sys.stdin, sys.stdout, arguments.critical, stop)


if __name__ == "__main__":
    main()
