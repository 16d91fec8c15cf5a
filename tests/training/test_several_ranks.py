"""Several trainer processes, with and without DeepSpeed, against one that learns the same alone."""

import json
from math import isfinite

import pytest

from miner.cli.explain import explanation
from miner.config.settings import Settings
from miner.distributed.ranks import LeadFailedError, join_ranks
from miner.reporting.records import StepRecord
from miner.reporting.run_folder import RunFolder
from miner.reporting.token_records import TokenRecords, step_loss
from tests.builders import build_qwen3
from tests.deepspeed_here import needs_deepspeed
from tests.processes import run_ranks
from tests.training import rank_program

pytestmark = pytest.mark.long

WAYS = ("ddp", "zero2", "zero3")
LEARNING = ("reward.credit=turn", "optimizer.beta=0.1")


def learn(folder, name, *overrides, ranks=2, poisoned_step=None):
    """The result of `rank_program`."""
    result = folder / f"{name}.json"
    run_ranks(folder, rank_program.learn, result, list(overrides), poisoned_step, count=ranks)
    return json.loads(result.read_text())


def deepspeed(way):
    """Settings for a way to share the work."""
    if way == "ddp":
        return []
    needs_deepspeed()
    return [f"optimizer.zero_stage={way[-1]}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    build_qwen3(seed=1).save_pretrained(folder / "reference")
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return learn(folder, "alone", *LEARNING, ranks=1)


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_learn_what_one_learns_alone(way, folder, alone):
    """In passes of which one rank has many more to make; under ZeRO-2 they are computed again on
    the way back, too. The norm shows the scale of the gradients, which Adam would hide from the
    weights."""
    again = ["model.gradient_checkpointing=true"] if way == "zero2" else []
    together = learn(folder, way, *LEARNING, *deepspeed(way), *again)
    for ours, theirs in zip(together["steps"], alone["steps"], strict=True):
        for name in ("loss", "grad_norm", "entropy", "kl", "target_kl"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name
        assert ours["computed_tokens"] < 0.8 * ours["row_tokens"]  # the rows' trees branch
    if way == "ddp":  # ZeRO exchanges gradients in each pass
        exchanged, steps = together["exchanged"], len(together["steps"])
        assert exchanged[-1]
        assert exchanged.count(True) == steps
        assert len(exchanged) > 2 * steps
    assert together["weights"].keys() == alone["weights"].keys()
    for name, values in alone["weights"].items():
        assert together["weights"][name] == pytest.approx(values, abs=1e-5), name

    explains(folder / way, together["steps"])


def explains(run_dir, steps):
    """Each step's loss follows from what both ranks have recorded, and every episode is shown."""
    records, run = TokenRecords(run_dir), RunFolder(run_dir)
    for number, logged in enumerate(steps, start=1):
        parts = records.of(number)
        assert len(parts) == 2
        assert all(row.tree >= 0 for part in parts for row in part.rows)
        assert step_loss(parts) == pytest.approx(logged["loss"], rel=1e-4, abs=1e-6)
        metrics = {"loss": logged["loss"]}
        run.steps.append(StepRecord(step=number, time=0, reward=0, metrics=metrics))
        shown = explanation(run_dir, number, None)
        assert "adds its own loss" not in shown
        games = [f"game {2 * number - 2 + game}" for game in range(2)]
        assert [shown.count(f"{game}, member {m}") for game in games for m in range(4)] == [1] * 8
        last = explanation(run_dir, number, 7)
        assert f"episode 7: {games[1]}, member 3" in last
        assert {f"{float(a):+.4f}" for a in parts[1].rows[-1].advantages} <= set(last.split())


@pytest.mark.parametrize("way", ["ddp", "zero3"])
def test_a_gradient_that_one_rank_ruins_is_skipped_by_all(way, folder):
    result = learn(folder, f"{way}-poisoned", *deepspeed(way), poisoned_step=2)
    assert [isfinite(step["grad_norm"]) for step in result["steps"]] == [True, False, True]
    assert all(abs(v) < 10 for values in result["weights"].values() for v in values)


def test_weights_that_zero_3_spreads_are_gathered_after_scores_without_a_way_back(folder):
    """Weights that DeepSpeed has asked for ahead of that way are in flight then."""
    needs_deepspeed()
    result = folder / "scored.json"
    run_ranks(folder, rank_program.score_between_steps, result)
    said = json.loads(result.read_text())
    assert said["kept"] == [True] * rank_program.STEPS
    assert all(0 < norm < 100 for norm in said["norms"])


def agree(folder):
    """One rank: what came of each way to come to one mind."""
    ranks = join_ranks(Settings.load(None, [], environ={}))

    def fail():
        raise OSError("full")

    try:
        ranks.lead_does(fail)
        failed = ""
    except (OSError, LeadFailedError) as error:
        failed = type(error).__name__
    said = {
        "gathered": ranks.gather(10 + ranks.rank),
        "shared": ranks.broadcast(ranks.rank),
        "most": ranks.most(ranks.rank),
        "done": ranks.lead_does(lambda: [ranks.rank]),
        "failed": failed,
    }
    (folder / f"said-{ranks.rank}").write_text(json.dumps(said))
    ranks.detach()


def test_ranks_come_to_one_mind(folder):
    run_ranks(folder, agree, folder)
    first, second = (json.loads((folder / f"said-{rank}").read_text()) for rank in range(2))
    assert (first.pop("failed"), second.pop("failed")) == ("OSError", "LeadFailedError")
    everywhere = {"gathered": [10, 11], "shared": 0, "most": 1, "done": [0]}
    assert first == second == everywhere
