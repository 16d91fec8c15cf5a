"""Lock files that a killed compiler leaves behind, and that every later process waits for.

torch builds extensions (DeepSpeed's among them) while programs run. It makes a file named `lock`
beside what it builds, removes it afterwards, and waits for one that it finds, however old it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from entrypoint.console import say
from entrypoint.run_plan import WATCHDOG


def remove_build_locks() -> None:
    """Remove every lock below TORCH_EXTENSIONS_DIR, if it is set, and log each.

    Between attempts, when at most compilers that outlive a killed trainer by moments build there.
    """
    folder = os.environ.get("TORCH_EXTENSIONS_DIR")
    if not folder:
        return
    for lock in sorted(Path(folder).rglob("lock")):
        try:
            lock.unlink()
        except OSError as error:
            say(f"{lock} cannot be removed, a build may wait for it: {error}", speaker=WATCHDOG)
        else:
            say(f"removed {lock}, left behind by a build that was killed", speaker=WATCHDOG)
