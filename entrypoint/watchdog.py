"""The critical program: starts the trainer, watches it, starts it again.

Invariants: the trainer starts at once, since it publishes the base model before it waits for
anything; it is never left silent for longer than the limit nor running past the end; when this
program ends, the run is over and the outcome file holds its end.
"""

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from entrypoint.console import print_line
from entrypoint.control import (
    ControlError,
    ProgramState,
    ShuttingDownError,
    StartError,
    SupervisorControl,
)
from entrypoint.exit_status import ExitStatus
from entrypoint.outcome import Outcome, write_outcome
from entrypoint.probes import health_error, health_errors, health_url, wait_for_answers
from entrypoint.restart import AttemptEnd, EndKind, after_attempt, end_of_exit
from entrypoint.run_plan import INFERENCE, TRAINER, WATCHDOG, RunPlan, evaluation_seconds
from miner.config.channel_facts import FACTS
from miner.config.heartbeat import Heartbeat, newest_write, read_heartbeat
from miner.config.run_files import has_begun, has_checkpoint, write_atomically
from miner.config.settings import Settings, to_toml
from miner.publishing.output_path import stagings

PROBE_TIMEOUT = 3.0  # seconds per server when asking who hangs
MAX_INFERENCE_STARTS = 4  # by then the server will not stay up
PATIENT_SHARE = 1 / 3  # of the time, for servers that no game was played on yet
HEALTH_EVERY = 5.0  # seconds between two questions to the inference server


class StopRequested(Exception):
    """supervisord stops everything: nothing is left to decide here."""


class Watchdog:
    """Runs one job's trainer to its end.

    Args:
        plan: of the run.
        control: supervisord.
        stop: set when this process is asked to end.
        clock: Unix seconds, injected by tests.
        steady: seconds that no setting of the clock moves, likewise.
    """

    def __init__(
        self,
        plan: RunPlan,
        control: SupervisorControl,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._control = control
        self._stop = stop
        self._clock = clock
        self._steady = steady
        self._last_beat, self._heard = 0.0, steady()
        self._inference_starts: set[float] = set()
        self._inference_health = plan.inference_health  # None once the trainer generates itself
        self._refused = False
        self._waited = 0  # for environment servers: attempts that ended for want of them
        self._inference_asked = 0.0
        self._inference_answered: float | None = None  # None until its current start has answered

    def run(self) -> Outcome:
        """Attempts until the outcome. Raises: `StopRequested`, `ControlError`."""
        settings = Settings.load(self._plan.settings_file, environ={})
        ends: list[AttemptEnd] = []
        rungs = 0
        while True:
            ends.append(self._attempt(len(ends) + 1))
            decision = after_attempt(
                ends,
                settings,
                rungs,
                self._plan.max_restarts,
                begun=has_checkpoint(self._plan.train_dir),
                waited=self._waited,
                adapter_learning_rate=self._plan.adapter_learning_rate,
                least_share=self._plan.least_memory_share,
            )
            if isinstance(decision, Outcome):
                return decision
            print_line(f"trainer: {decision.reason}", speaker=WATCHDOG)
            before, settings, rungs = settings, decision.settings, decision.rungs
            if ends[-1].kind is EndKind.UNREACHABLE:
                answered = self._wait_for_servers(settings)
                if isinstance(answered, Outcome):
                    return answered
                settings = answered
            if settings.rollout.engine != before.rollout.engine:  # there is one way only
                settings = self._give_up_inference(settings)
            elif ends[-1].kind in (EndKind.INFERENCE_LOST, EndKind.HUNG):
                self._inference_starts.clear()  # ours, not a sign that it does not stay up
                self._restart_inference()
            self._write_settings(settings)

    def _write_settings(self, settings: Settings) -> None:
        """The next attempt's, as soon as the disk takes them. Raises: OSError if it does not."""
        until = min(self._clock() + self._plan.disk_seconds, self._plan.ends_at)
        waits = False
        while True:
            try:
                write_atomically(self._plan.settings_file, to_toml(settings))
                return
            except OSError as error:
                if self._clock() >= until:
                    raise
                if not waits:
                    print_line(f"waiting for room on the disk: {error}", speaker=WATCHDOG)
                waits = True
            if self._stop.wait(self._plan.poll_seconds):
                raise StopRequested

    def _give_up_inference(self, settings: Settings) -> Settings:
        """Let the trainer generate from now on; a server's GPUs stay unused.

        Returns: the settings with as many held-out games as there is time for then; with the same
            ones where the base has played them, since other models' scores are compared with its,
            and the time that they take now.
        """
        if self._inference_health is not None:
            self._control.stop(INFERENCE)
        self._inference_health = None
        evaluation = self._plan.unserved_evaluation
        if evaluation is None:
            return settings
        if has_begun(self._plan.train_dir):
            seconds = evaluation_seconds(evaluation, settings.evaluation.episodes)
            return settings.having(evaluation={"seconds": seconds})
        return settings.having(evaluation=evaluation.model_dump())

    def _restart_inference(self) -> None:
        """Restart it: a server that answers may still hang in a transfer of weights."""
        if self._inference_health is None:
            return
        print_line("the inference server is restarted", speaker=WATCHDOG)
        self._inference_answered = None
        self._control.stop(INFERENCE)
        try:
            self._control.start(INFERENCE)
        except StartError as error:
            print_line(str(error), speaker=WATCHDOG)  # the next attempt ends for want of it

    def _wait_for_servers(self, settings: Settings) -> Settings | Outcome:
        """The gate after a loss of all environment servers: while there is time to train.

        Returns: the next attempt's settings, or the outcome if the gate stays closed. A run of the
            servers' own games that has nothing yet plays them in its process after a third of
            its time.
        """
        plan, until = self._plan, self._plan.trainer_ends_at
        facts = FACTS[settings.environment.channel]
        if not (plan.servers and facts.asks_servers):
            return settings
        self._waited += 1
        in_process = facts.first_format and not (plan.by_hand or has_begun(plan.train_dir))
        if in_process:
            until = plan.started_at + PATIENT_SHARE * (until - plan.started_at)
        urls = [health_url(server) for server in plan.servers]
        silent = wait_for_answers(
            urls,
            fewest=1,
            timeout=PROBE_TIMEOUT,
            seconds=max(0.0, until - self._clock()),
            every=plan.poll_seconds,
            stop=self._stop,
        )
        if self._stop.is_set():
            raise StopRequested
        answers = len(silent) < len(urls)
        if answers and not (in_process and self._clock() >= until):
            return settings
        trouble = "no game can be played on the environment servers"
        if not answers:
            trouble = f"no environment server answers any more: {silent[urls[0]]}"
        if not in_process:
            return Outcome(ExitStatus.ENVIRONMENT, trouble)
        print_line(f"{trouble}; the game is played in this process", speaker=WATCHDOG)
        return settings.having(environment={"channel": "builtin", "servers": ()})

    def _attempt(self, number: int) -> AttemptEnd:
        """Start the trainer and watch it until it has ended or had to be stopped."""
        began = self._clock()
        _remove_build_locks()
        try:
            self._control.start(TRAINER)
        except StartError as error:
            return AttemptEnd(EndKind.REFUSED, str(error))
        print_line(f"trainer: attempt {number} started", speaker=WATCHDOG)
        if self._inference_answered is not None:
            self._inference_answered = began  # unused between two attempts
        asked = False
        while True:
            state = self._control.state(TRAINER)
            if state.over:
                return self._ended(state, began, asked)
            now = self._clock()
            if now >= self._plan.trainer_ends_at and not asked:
                asked = True
                print_line("trainer: the time is over, asked to publish and end", speaker=WATCHDOG)
                self._control.ask_to_stop(TRAINER)
            end = self._reason_to_stop(began, now, asked)
            if end is not None:
                print_line(f"trainer is stopped: {end}", speaker=WATCHDOG)
                self._control.stop(TRAINER)
                return end
            if self._stop.wait(self._plan.poll_seconds):
                raise StopRequested

    def _ended(self, state: ProgramState, began: float, asked: bool) -> AttemptEnd:
        """Meaning of an end that the trainer was not asked for."""
        if state.name == "FATAL":
            return AttemptEnd(EndKind.REFUSED, state.error)
        end = end_of_exit(state.exit_status)
        if asked and end.kind is not EndKind.PUBLISHED:
            return AttemptEnd(EndKind.OUT_OF_TIME, f"asked to end, it ended with {end.detail}")
        if end.kind is EndKind.REFUSED and self._has_beaten(began) and not self._refused:
            self._refused = True  # its settings had been accepted; a second time it is the base
            return AttemptEnd(EndKind.CRASHED, end.detail)
        return end

    def _reason_to_stop(self, began: float, now: float, asked: bool) -> AttemptEnd | None:
        """Reason to stop a trainer that still runs."""
        if now >= self._plan.ends_at:
            return AttemptEnd(EndKind.OUT_OF_TIME, "it did not end when asked to")
        if not self._inference_stays_up():
            starts = f"started {len(self._inference_starts)} times"
            return AttemptEnd(EndKind.UNSERVED, self._control.state(INFERENCE).error or starts)
        self._revive_inference(now)
        beat = read_heartbeat(self._plan.heartbeat_file, began)
        if beat.time != self._last_beat:
            self._last_beat, self._heard = beat.time, self._steady()
        limit = self._plan.stall_seconds
        if asked or now - beat.time <= limit or self._steady() - self._heard <= limit:
            return None
        # a model is also published beside the output, by a slow disk for long
        folders = (self._plan.train_dir, *stagings(self._plan.output_dir))
        if any(now - newest_write(folder, until=now) <= limit for folder in folders):
            return None
        silence = _describe_silence(beat, now, self._plan.stall_seconds)
        return AttemptEnd(EndKind.HUNG, silence + self._who_else_is_silent())

    def _who_else_is_silent(self) -> str:
        urls = [health_url(server) for server in self._plan.servers]
        if self._inference_health:
            urls.append(self._inference_health)
        if not urls:
            return ""
        silent = health_errors(urls, PROBE_TIMEOUT)
        return (
            f"; does not answer: {', '.join(silent.values())}"
            if silent
            else ("; every server answers")
        )

    def _has_beaten(self, began: float) -> bool:
        return read_heartbeat(self._plan.heartbeat_file, began).time > began

    def _inference_stays_up(self) -> bool:
        """supervisord restarts a crashed inference server for ever; this counts the starts."""
        if self._inference_health is None:
            return True
        state = self._control.state(INFERENCE)
        if state.started_at not in self._inference_starts:
            self._inference_starts.add(state.started_at)
            self._inference_answered = None
        return state.name != "FATAL" and len(self._inference_starts) < MAX_INFERENCE_STARTS

    def _revive_inference(self, now: float) -> None:
        """Restart a server that has stopped answering: when vLLM's engine dies, its first process
        may wait for ever for requests that are never answered (seen with 0.31)."""
        if self._inference_health is None or now - self._inference_asked < HEALTH_EVERY:
            return
        self._inference_asked = now
        error = health_error(self._inference_health, PROBE_TIMEOUT)
        if not error:
            self._inference_answered = now
        elif (
            self._inference_answered is not None
            and now - self._inference_answered > self._plan.inference_silent_seconds
        ):
            print_line(f"inference is silent: {error}", speaker=WATCHDOG)
            self._restart_inference()


def _describe_silence(beat: Heartbeat, now: float, limit: float) -> str:
    """One sentence on a trainer that has been silent for too long."""
    return (
        f"no heartbeat for {now - beat.time:.0f} s (limit {limit:.0f} s) "
        f"in phase {beat.phase!r} at step {beat.step}"
    )


def _remove_build_locks() -> None:
    """Remove the lock files of killed compilers below TORCH_EXTENSIONS_DIR, if it is set.

    torch builds extensions (DeepSpeed's among them) while programs run. It makes a file named
    `lock` beside what it builds, removes it afterwards, and waits for one that it finds, however
    old it is. Between attempts, at most compilers that outlive a killed trainer by moments build.
    """
    folder = os.environ.get("TORCH_EXTENSIONS_DIR")
    for lock in sorted(Path(folder).rglob("lock")) if folder else ():
        try:
            lock.unlink()
        except OSError as error:
            print_line(
                f"{lock} cannot be removed, a build may wait for it: {error}", speaker=WATCHDOG
            )
        else:
            print_line(f"removed {lock}, left behind by a build that was killed", speaker=WATCHDOG)


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
    except (StopRequested, ShuttingDownError):
        return
    except ControlError as error:
        outcome = Outcome(ExitStatus.SUPERVISOR, str(error))
    except OSError as error:  # a full disk, most likely
        outcome = Outcome(ExitStatus.DISK, f"the run's files cannot be written: {error}")
    print_line(outcome.message, speaker=WATCHDOG)
    with suppress(OSError):  # then the listener leaves one
        write_outcome(plan.outcome_file, outcome)


if __name__ == "__main__":
    main()
