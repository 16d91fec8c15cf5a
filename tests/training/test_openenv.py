"""A whole training run on a real OpenEnv server that the trainer starts itself."""

import json

from miner.reporting.run_folder import RunFolder
from tests.environments.openenv.here import REPOSITORY, needs_openenv, python_of_openenv

needs_openenv()

ECHO = (
    "environment.channel=openenv",
    f"environment.openenv.app={REPOSITORY / 'examples/openenv/echo.py'}",
    f"environment.openenv.python={python_of_openenv()}",
    "optimizer.max_steps=2",
)


def test_echo_is_trained_on(work):
    """The base says digits until it ends; longer replies are worth more."""
    work.train(*ECHO, "environment.openenv.max_turns=1", "reward.invalid_reply_penalty=0")
    run = RunFolder(work.run_dir).read()
    assert [record.step for record in run.steps] == [1, 2]
    assert [record.episodes for record in run.steps] == [8, 8]
    assert [record.lost_episodes for record in run.steps] == [0, 0]
    assert all(0 < record.score < 0.5 for record in run.steps)
    assert work.trainers[0].state.log_history[0]["grad_norm"] > 0
    assert run.probe["channel"] == "openenv"
    assert run.probe["seeds"] == "constant"
    assert {evaluation.channel for evaluation in run.evaluations} == {"openenv"}
    best = json.loads((work.run_dir / "best.json").read_text())
    assert len(best["base"]["scores"]) == 10
    assert (work.published / "config.json").exists()
