"""A fake supervisord for the watchdog, and a clock that the test moves."""

import json
import threading
from collections.abc import Callable

from entrypoint.control import ProgramState
from entrypoint.exit_status import ExitStatus
from entrypoint.run_plan import INFERENCE, TRAINER, RunPlan
from entrypoint.watchdog import Watchdog

NOBODY = "http://127.0.0.1:1"
RUNNING = ProgramState("RUNNING", 0, 1.0)
Moment = Callable[["FakeSupervisor"], None]


class FakeSupervisor:
    """Control and clock: each look at the trainer takes ten seconds and plays the next moment."""

    def __init__(self, plan: RunPlan, moments: list[Moment]) -> None:
        self.plan = plan
        self.now = plan.started_at
        self.moments = moments
        self.states = {INFERENCE: RUNNING, TRAINER: ProgramState("STOPPED", 0, 0.0)}
        self.done: list[str] = []
        self.stop_event = threading.Event()

    def clock(self) -> float:
        return self.now

    def state(self, program: str) -> ProgramState:
        if program == TRAINER:
            self.now += 10
            if self.moments:
                self.moments.pop(0)(self)
        return self.states[program]

    def start(self, program: str) -> None:
        self.done.append(f"start {program}")
        self.states[program] = RUNNING

    def ask_to_stop(self, program: str) -> None:
        self.done.append(f"ask {program}")

    def stop(self, program: str) -> None:
        self.done.append(f"stop {program}")
        self.states[program] = ProgramState("STOPPED", -1, 0.0)


def runs(fake: FakeSupervisor) -> None:
    """Nothing happens."""


def beats(fake: FakeSupervisor) -> None:
    beat = {"time": fake.now, "phase": "rollout", "step": 3}
    fake.plan.heartbeat_file.write_text(json.dumps(beat))


def exits(status: int) -> Moment:
    def moment(fake: FakeSupervisor) -> None:
        fake.states[TRAINER] = ProgramState("EXITED", status, 0.0)

    return moment


def is_asked_to_stop(fake: FakeSupervisor) -> None:
    fake.stop_event.set()


def watch(fake: FakeSupervisor) -> tuple[ExitStatus, str]:
    outcome = Watchdog(fake.plan, fake, fake.stop_event, fake.clock, fake.clock).run()
    return outcome.status, outcome.message


Build = Callable[..., FakeSupervisor]
