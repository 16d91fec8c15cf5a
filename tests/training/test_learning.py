"""GRPO through the servers' own games raises the score: by far more than chance, on equal games."""

import json
import statistics

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from miner.tiny_model.build import Recipe, cached_tiny_model
from miner.tiny_model.number_following import DataRecipe
from miner.tiny_model.rules import Rule
from miner.tiny_model.warm_start import WarmStartRecipe
from mock_env_server.running import running_server
from tests.conftest import REPOSITORY
from tests.processes import start_miner
from tests.training.commands import places

pytestmark = pytest.mark.long

WRONG_WAY_ROUND = Recipe(
    data=DataRecipe(
        rules=((Rule.FARTHEST, 0.7), (Rule.NEAREST, 0.3)),
        sharpness=(8.0,),
        other_sizes=0.0,
        full=1.0,
    ),
    warm_start=WarmStartRecipe(steps=1500, lookup_accuracy=0.9, mixture_steps=200, short_steps=400),
)
"""It looks numbers up and mostly takes what is farthest from them: most games are lost."""


def test_a_base_that_loses_learns_to_win(tmp_path):
    """Base and trained model on the same held-out games, of which no game was trained on."""
    base = cached_tiny_model(REPOSITORY / ".cache/tiny-model", recipe=WRONG_WAY_ROUND)
    with running_server("faithful") as server:
        done = start_miner(
            tmp_path,
            "train",
            *places(tmp_path, base),
            "environment.deck_sizes=[8]",
            "rollout.groups_per_step=32",
            "rollout.group_size=1",
            "optimizer.learning_rate=2e-3",
            "optimizer.decay_share=0.01",
            "optimizer.max_steps=12",
            "reward.credit=all_moves",
            "reward.targets=0",
            "reward.invalid_reply_penalty=0.3",
            "evaluation.episodes=80",
            "evaluation.every_steps=12",
            "threads=1",
            ENVIRONMENT_SERVER_URLS=server.base_url,
        )
        assert done.returncode == 0, done.stderr  # waits, with the server still there
    run = RunFolder(tmp_path / "run").read()
    assert [record.step for record in run.steps] == list(range(1, 13))
    assert {record.action_applied_rate for record in run.steps} == {1.0}
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["channel"] == "graded"

    scores = json.loads((tmp_path / "run" / "best.json").read_text())
    before, after = scores["base"]["scores"], scores["best"]["scores"]
    gains = [b - a for a, b in zip(before, after, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    assert statistics.mean(gains) > 4 * error
    published = tmp_path / "out" / "task" / "repo"
    verify_model(published, load=True)
    AutoModelForCausalLM.from_pretrained(published)
    AutoTokenizer.from_pretrained(published)
