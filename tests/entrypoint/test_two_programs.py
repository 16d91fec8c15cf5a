"""Two programs, the tests' stub server in `vllm serve`'s place: weights over real HTTP.

tests/real_vllm runs the same with vLLM itself and one rank; the stub tells which weights it sampled
with.
"""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.entrypoint.two_programs import STEPS, TwoPrograms, planned_words, two_programs
from tests.small_base import small_base
from tests.vllm_surface import FIELDS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_base(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def run(tmp_path: Path, base: Path, journal: Path) -> Iterator[TwoPrograms]:
    """Two ranks under ZeRO-3."""
    stub = (sys.executable, "-m", "tests.stub_vllm")
    environment = {"STUB_VLLM_JOURNAL": str(journal)}
    with two_programs(tmp_path, base, stub, environment=environment, ranks=2) as programs:
        yield programs


def events(journal: Path, kind: str = "") -> list[str]:
    """Requests to the stub, all or of one kind."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [line for line in lines if line.startswith(kind)]


def test_every_planned_flag_is_among_those_that_vllm_is_checked_for() -> None:
    flags = {word[2:].replace("-", "_") for word in planned_words(Path("/m")) if word[:2] == "--"}
    frontend = {"host", "port", "enable_prompt_tokens_details"}  # not the engine's
    assert flags - frontend <= set(FIELDS["vllm.engine.arg_utils:EngineArgs"])


def test_weights_travel_version_by_version_through_the_death_of_the_server(
    run: TwoPrograms, journal: Path
) -> None:
    """The server is killed in the rollout of step 2; supervisord starts it, nothing is lost."""
    while not any(line == "sample 1" for line in events(journal, "sample")):
        assert run.process.poll() is None, run.end()[1]
        time.sleep(0.01)
    os.kill(int(events(journal, "start")[0].split()[1]), signal.SIGKILL)
    status, output = run.end()
    assert status == 0, output
    assert "attempt 2" not in output  # the same trainer went on
    assert len(events(journal, "start")) == 2

    steps = run.steps()
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert all(record.lost_episodes == 0 for record in steps)
    gaps = [record.metrics["sampling/sampling_logp_difference/max"] for record in steps]
    assert max(gaps) < 1e-2  # the same weights in both programs, at every step

    done = events(journal)
    after_death = done[done.index(events(journal, "start")[1]) + 1 :]
    assert after_death[0] == "push 1"
    sampled = [key.split()[1] for key, _ in itertools.groupby(events(journal, "sample"))]
    assert sampled == ["default", *map(str, range(1, STEPS + 1))]
