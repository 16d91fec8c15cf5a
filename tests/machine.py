"""Environment servers that tests kill and start again."""

from contextlib import ExitStack

from miner.distributed.launch import free_port
from mock_env_server.running import RunningServer, running_server


class Machine:
    """Servers on fixed ports, to be killed and started again."""

    def __init__(self) -> None:
        self._ports: list[int] = []
        self._running: dict[int, tuple[ExitStack, RunningServer]] = {}

    def start(self, number: int | None = None) -> str:
        """A new server, or the one of this number again."""
        if number is None:
            self._ports.append(free_port())
            number = len(self._ports) - 1
        stack = ExitStack()
        server = stack.enter_context(running_server("correct", "--port", str(self._ports[number])))
        self._running[number] = (stack, server)
        return server.base_url

    def kill(self, number: int) -> None:
        stack, server = self._running.pop(number)
        server.process.kill()
        server.process.wait()
        stack.close()

    def close(self) -> None:
        for stack, _ in self._running.values():
            stack.close()
