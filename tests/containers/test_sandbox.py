"""The sandbox for a policy's code in a container under the tournament's limits."""

import json
from pathlib import Path

import pytest

from tests.containers.harness import Container, Place
from tests.executors.attacks import ATTACKS

pytestmark = pytest.mark.long

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("tier", ["landlock", "none"])
def test_every_attack_is_contained(place: Place, tier: str) -> None:
    container = Container(
        place,
        ["-m", "tests.executors.battery", tier],
        volumes={TESTS: "/app/tests:ro"},
        entrypoint="python",
    )
    try:
        assert container.wait() == 0, container.log
        found = json.loads(container.log[-1])
    finally:
        container.remove()
    assert found == {attack.name: [] for attack in ATTACKS}
