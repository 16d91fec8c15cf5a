"""supervisord's remote control, reduced to what the watchdog needs."""

import http.client
import xmlrpc.client
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import Faults, SupervisorTransport

from entrypoint.supervisor_config import GROUP

_CANNOT_START = (Faults.NO_FILE, Faults.NOT_EXECUTABLE, Faults.SPAWN_ERROR)


class ControlError(RuntimeError):
    """supervisord could not be asked, or refused."""


class StartError(ControlError):
    """supervisord answered that a program cannot be started."""


class ShuttingDownError(ControlError):
    """supervisord is stopping everything and takes no more orders."""


@dataclass(frozen=True)
class ProgramState:
    """A program as supervisord sees it.

    Attributes:
        name: supervisord's word for the state: "STOPPED", "STARTING", "RUNNING", "EXITED", ...
        exit_status: of the last run; -1 when a signal ended it.
        started_at: Unix seconds of the last start.
        error: reason why it could not be started.
    """

    name: str
    exit_status: int
    started_at: float
    error: str = ""

    @property
    def over(self) -> bool:
        """No process of this program runs or is about to."""
        return self.name in ("STOPPED", "EXITED", "FATAL")


class SupervisorControl:
    """Starts, stops and observes programs for the watchdog, over supervisord's socket.

    Every method raises `ControlError`.
    """

    def __init__(self, socket: Path) -> None:
        transport = SupervisorTransport(None, None, f"unix://{socket}")
        self._rpc = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)

    def state(self, program: str) -> ProgramState:
        """The program's current state."""
        info = self._call(self._rpc.supervisor.getProcessInfo, program)
        return ProgramState(
            name=str(info["statename"]),
            exit_status=int(info["exitstatus"]),
            started_at=float(info["start"]),
            error=str(info["spawnerr"]),
        )

    def start(self, program: str) -> None:
        """Start it, unless it runs; returns once it is being started. Raises: `StartError`."""
        start = self._rpc.supervisor.startProcess
        self._call(start, program, False, unless=Faults.ALREADY_STARTED)

    def ask_to_stop(self, program: str) -> None:
        """Send SIGTERM and return at once; no effect on a program that does not run."""
        signal = self._rpc.supervisor.signalProcess
        self._call(signal, program, "TERM", unless=Faults.NOT_RUNNING)

    def stop(self, program: str) -> None:
        """SIGTERM, then SIGKILL after the stop time; returns when it is over."""
        stop = self._rpc.supervisor.stopProcess
        self._call(stop, program, True, unless=Faults.NOT_RUNNING)

    def _call(
        self,
        method: Callable[..., Any],
        program: str,
        *arguments: object,
        unless: int | None = None,
    ) -> Any:
        """Call it.

        Args:
            unless: fault that means that nothing has to be done.
        """
        try:
            return method(f"{GROUP}:{program}", *arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == unless:
                return None
            if fault.faultCode == Faults.SHUTDOWN_STATE:
                raise ShuttingDownError(fault.faultString) from fault
            if fault.faultCode in _CANNOT_START:
                raise StartError(f"{program}: {fault.faultString}") from fault
            raise ControlError(f"supervisord, asked about {program}: {fault}") from fault
        except (OSError, xmlrpc.client.Error, http.client.HTTPException) as error:
            raise ControlError(f"supervisord, asked about {program}: {error}") from error
