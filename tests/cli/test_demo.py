"""`python -m miner demo`, the whole of it, with a base model and a run of a few steps."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from miner.cli import demo
from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from miner.tiny_model import build
from tests.commands import status_of

TINY_RUN = (
    "rollout.groups_per_step=2",
    "optimizer.max_steps=2",
    "evaluation.episodes=10",
    "evaluation.every_steps=2",
    "threads=1",
)

pytestmark = pytest.mark.long


def test_the_demo_makes_trains_grades_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base_recipe_for = build.base_recipe_for

    def short(*sizes: object) -> build.Recipe:
        recipe = base_recipe_for(*sizes)  # type: ignore[arg-type]
        return replace(recipe, warm_start=replace(recipe.warm_start, steps=30))

    monkeypatch.setattr(build, "base_recipe_for", short)
    monkeypatch.setattr(demo, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(demo, "SERVERS", 1)
    played = ("tiny", "8")
    monkeypatch.setitem(demo.SHOWS, played, replace(demo.SHOWS[played], episodes=12))
    out = tmp_path / "runs"
    settings = [word for setting in TINY_RUN for word in ("--set", setting)]
    status = status_of("demo", "--out", out, *settings)
    told = capfd.readouterr()
    assert not status, told

    name = "demo-8-cards-seed-0"
    run = RunFolder(out / name).read()
    assert [record.step for record in run.steps] == [1, 2]
    graded = {record.name: record for record in run.evaluations if record.split == "grader"}
    assert {"random", "base, sampled", "trained", "trained, sampled"} < graded.keys()
    assert len(graded) == 6  # and the base played greedily, and a baseline
    assert {record.score.n for record in graded.values()} == {12}
    published = out / "checkpoints" / demo.TASK_ID / name
    assert verify_model(published, load=True).loaded
    assert json.loads((out / name / "probe.json").read_text())["channel"] == "graded"
    assert (out / name / "learning_curve.png").stat().st_size > 0
    assert "<html" in (out / name / "report.html").read_text().lower()
    for shown in (str(published), "report.html", "learning_curve.png", "trained, sampled"):
        assert shown in told.out


@pytest.mark.parametrize(
    ("games", "cores", "processes"),
    [(12, 2, 2), (12, 1, 1), (12, 5, 4), (12, 64, 4), (1, 8, 1), (9, 2, 1)],
)
def test_games_are_shared_evenly_by_processes(games: int, cores: int, processes: int) -> None:
    assert demo.trainer_processes(games, cores) == processes


def test_a_demo_that_is_ended_ends_what_it_has_started(tmp_path: Path) -> None:
    """Its child writes its own number and waits; SIGTERM comes to the parent alone."""
    number = tmp_path / "child"
    child = f"import os, time; open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = (
        "import subprocess, sys\nfrom miner.cli.demo import ending_children\n"
        f"with ending_children():\n    subprocess.run([sys.executable, '-c', {child!r}])"
    )
    demo = subprocess.Popen([sys.executable, "-c", program])
    while not number.is_file() or not number.read_text():
        assert demo.poll() is None
        time.sleep(0.05)
    demo.terminate()
    assert demo.wait() == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
