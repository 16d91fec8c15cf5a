"""A whole training run on a real OpenEnv server that the trainer starts itself."""

import json

from miner.reporting.run_folder import RunFolder
from miner.reporting.token_records import TokenRecords
from tests.environments.openenv.here import REPOSITORY, needs_openenv, python_of_openenv

needs_openenv()

ECHO = (
    "environment.channel=openenv",
    f"environment.openenv.app={REPOSITORY / 'examples/openenv/echo.py'}",
    f"environment.openenv.python={python_of_openenv()}",
    "optimizer.max_steps=2",
)
TURNS = (
    "environment.openenv.max_turns=2",
    "environment.openenv.return_range=[0,4]",
    "reward.credit=turn",
)


def test_echo_is_trained_on(work):
    """The base says digits until it ends; longer replies are worth more, each in its turn."""
    work.train(*ECHO, *TURNS, "reward.invalid_reply_penalty=0", "token_records=1")
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
    [part] = TokenRecords(work.run_dir).of(2)
    scores = [[score for _, score, _ in each["parts"]] for each in part.episodes]
    assert any(first for first, _ in scores)
    assert all(last >= 0 for _, last in scores), "nothing is made up for by the last turn"
