"""The shells in which InterCode is played here."""

from __future__ import annotations

import pytest

from miner.duel.intercode.environment import OpenShell
from miner.executors.shell import RealmShell
from tests.duel.intercode_shells import by_rote, require_realms


@pytest.fixture(params=["by rote", "realm"])
def open_shell(request: pytest.FixtureRequest) -> OpenShell:
    """Of one that knows the recorded commands, and of bash itself."""
    if request.param == "by rote":
        return by_rote
    require_realms()
    return RealmShell.start
