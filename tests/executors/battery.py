"""Runs the table of attacks against a sandbox; also a program, for containers (prints JSON)."""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from miner.executors import Execution, Limits, LocalSandbox
from miner.executors.sandbox import MODULES
from tests.executors.attacks import ATTACKS, BREACH, PREAMBLE, TOOLS, Attack

SECRET = "weights"
QUICK = Limits(seconds=1.0)


@dataclass(frozen=True)
class Target:
    """Targets of attacks: a folder with a secret, this process, a server that listens."""

    sandbox: LocalSandbox
    folder: Path
    port: int

    async def attack(self, attack: Attack) -> list[str]:
        """Breaches in words."""
        code = PREAMBLE + attack.code
        for name, value in (("FOLDER", self.folder), ("MINER", os.getpid()), ("PORT", self.port)):
            code = code.replace(name, str(value))
        run = await self.sandbox.run(code)
        return [*_breaches(attack, run), *await self._damage()]

    async def _damage(self) -> list[str]:
        found = []
        if sorted(path.name for path in self.folder.iterdir()) != ["secret"]:
            found.append(f"the folder holds {sorted(self.folder.iterdir())}")
        elif (self.folder / "secret").read_text() != SECRET:
            found.append("the secret was changed")
        if (after := await self.sandbox.run("print(6 * 7)")).text != "42":
            found.append(f"the next run went wrong: {after}")
        return found


@asynccontextmanager
async def target(*, landlock: bool) -> AsyncIterator[Target]:
    """A sandbox in one of the tiers, and something to attack."""
    sandbox = LocalSandbox(QUICK, landlock=landlock)
    loaded = patch("miner.executors.sandbox.MODULES", (*MODULES, *TOOLS))
    place = socket.create_server(("127.0.0.1", 0))
    with loaded, tempfile.TemporaryDirectory() as folder, place as server:
        Path(folder, "secret").write_text(SECRET)  # noqa: ASYNC240
        await sandbox.run("x = ['PASSWORD']")  # of another episode
        try:
            yield Target(sandbox, Path(folder), server.getsockname()[1])
        finally:
            await sandbox.close()


def _breaches(attack: Attack, run: Execution) -> list[str]:
    found = []
    if BREACH in run.text:
        found.append(run.text)
    kind = run.failure.kind if run.failure else None
    if kind not in attack.ends:
        found.append(f"ended as {kind!r} where {attack.ends} was expected: {run.text[-300:]}")
    return found


async def battery(*, landlock: bool) -> dict[str, list[str]]:
    """Breaches by attack; each is on its own, for it to be known by its damage."""
    async with target(landlock=landlock) as there:
        return {attack.name: await there.attack(attack) for attack in ATTACKS}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(battery(landlock=sys.argv[1] == "landlock"))))
