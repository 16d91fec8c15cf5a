"""The critical program: starts the trainer when its gates are open, watches it, starts it again.

Invariants: the trainer runs only after everything it needs answers; it is never left silent for
longer than the limit nor running past the end; when this program ends, the run is over and
outcome.json says how.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import tomli_w

from entrypoint.console import say
from entrypoint.control import Control, ControlError, StartError, SupervisorControl
from entrypoint.exit_status import ExitStatus
from entrypoint.heartbeat import describe_silence, read_heartbeat
from entrypoint.outcome import Outcome, write_outcome
from entrypoint.probes import complaint, complaints, health_url, poll
from entrypoint.restart import AttemptEnd, EndKind, NextAttempt, after_attempt, end_of_exit
from entrypoint.run_plan import INFERENCE, TRAINER, WATCHDOG, RunPlan, write_atomically

PROBE_TIMEOUT = 3.0  # seconds per server when asking who hangs
MAX_INFERENCE_STARTS = 6  # by then the server will not stay up


class StopRequested(Exception):
    """supervisord stops everything: nothing is left to decide here."""


class Watchdog:
    """Runs one job's trainer to its end.

    Args:
        plan: of the run.
        control: supervisord.
        stop: set when this process is asked to end.
        clock: Unix seconds, injected by tests.
    """

    def __init__(
        self,
        plan: RunPlan,
        control: Control,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._control = control
        self._stop = stop
        self._clock = clock
        self._inference_starts: set[float] = set()

    def run(self) -> Outcome:
        """Gates, attempts, outcome. Raises: `StopRequested`, `ControlError`."""
        closed = self._wait_for_inference()
        if closed is not None:
            return closed
        settings = tomllib.loads(self._plan.settings_file.read_text())
        ends: list[AttemptEnd] = []
        rungs = 0
        while True:
            ends.append(self._attempt(len(ends) + 1))
            decision = after_attempt(ends, settings, rungs, self._plan.max_restarts)
            if isinstance(decision, Outcome):
                return decision
            say(f"trainer: {decision.reason}", speaker=WATCHDOG)
            settings, rungs = decision.settings, decision.rungs
            self._write_settings(decision)

    def _wait_for_inference(self) -> Outcome | None:
        url = self._plan.inference_health
        if url is None:
            return None
        say(f"waiting for the inference server at {url}", speaker=WATCHDOG)
        said = ""

        def ready() -> bool:
            nonlocal said
            said = complaint(url, PROBE_TIMEOUT)
            return not said

        seconds = min(self._plan.inference_seconds, self._plan.ends_at - self._clock())
        if poll(ready, seconds=seconds, every=self._plan.poll_seconds, stop=self._stop):
            return None
        if self._stop.is_set():
            raise StopRequested
        state = self._control.state(INFERENCE)
        return Outcome(
            ExitStatus.INFERENCE,
            f"the inference server is {state.name} and does not answer after {seconds:.0f} s: "
            f"{said or state.error}",
        )

    def _attempt(self, number: int) -> AttemptEnd:
        """Start the trainer and watch it until it has ended or had to be stopped."""
        began = self._clock()
        try:
            self._control.start(TRAINER)
        except StartError as error:
            return AttemptEnd(EndKind.REFUSED, str(error))
        say(f"trainer: attempt {number} started", speaker=WATCHDOG)
        asked = False
        while True:
            state = self._control.state(TRAINER)
            if state.name == "FATAL":
                return AttemptEnd(EndKind.REFUSED, state.error)
            if state.over:
                return self._ended(state.exit_status, asked)
            now = self._clock()
            if now >= self._plan.ends_at:
                self._control.stop(TRAINER)
                return AttemptEnd(EndKind.OUT_OF_TIME, "it did not end when asked to")
            if now >= self._plan.trainer_ends_at and not asked:
                asked = True
                say("trainer: the time is over, asked to publish and end", speaker=WATCHDOG)
                self._control.ask_to_stop(TRAINER)
            silence = self._silence(began, now)
            if silence and not asked:
                say(f"trainer: {silence}", speaker=WATCHDOG)
                self._control.stop(TRAINER)
                return AttemptEnd(EndKind.HUNG, silence)
            if not self._inference_stays_up():
                self._control.stop(TRAINER)
                return AttemptEnd(EndKind.UNSERVED, f"started {MAX_INFERENCE_STARTS} times")
            if self._stop.wait(self._plan.poll_seconds):
                raise StopRequested

    def _ended(self, exit_status: int, asked: bool) -> AttemptEnd:
        end = end_of_exit(exit_status)
        if asked and end.kind is not EndKind.PUBLISHED:
            return AttemptEnd(EndKind.OUT_OF_TIME, f"asked to end, it ended with {end.detail}")
        return end

    def _silence(self, began: float, now: float) -> str:
        """Why the trainer counts as hung, with what else does not answer; "" while it is alive."""
        limit = self._plan.stall_seconds
        beat = read_heartbeat(self._plan.heartbeat_file, began)
        if now - beat.time <= limit:
            return ""
        urls = [health_url(server) for server in self._plan.servers]
        if self._plan.inference_health:
            urls.append(self._plan.inference_health)
        silent = complaints(urls, PROBE_TIMEOUT)
        servers = (
            f"; does not answer: {', '.join(silent.values())}"
            if silent
            else "; every server answers"
        )
        return describe_silence(beat, now, limit) + (servers if urls else "")

    def _inference_stays_up(self) -> bool:
        """supervisord restarts a crashed inference server for ever; this counts the starts."""
        if self._plan.inference_health is None:
            return True
        self._inference_starts.add(self._control.state(INFERENCE).started_at)
        return len(self._inference_starts) < MAX_INFERENCE_STARTS

    def _write_settings(self, attempt: NextAttempt) -> None:
        write_atomically(self._plan.settings_file, tomli_w.dumps(attempt.settings))


def main() -> None:
    """Entry point of the program that supervisord starts."""
    parser = argparse.ArgumentParser(prog="python -m entrypoint.watchdog")
    parser.add_argument("plan", type=Path, help="run.json of the run")
    plan = RunPlan.read(parser.parse_args().plan)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        outcome = Watchdog(plan, SupervisorControl(plan.socket), stop).run()
    except StopRequested:
        return
    except ControlError as error:
        outcome = Outcome(ExitStatus.SUPERVISOR, str(error))
    say(outcome.message, speaker=WATCHDOG)
    write_outcome(plan.outcome_file, outcome)


if __name__ == "__main__":
    main()
