"""Two processes whose episodes need different numbers of passes learn as from one pass each."""

import json

import pytest

from tests.deepspeed_here import needs_deepspeed
from tests.processes import run_ranks
from tests.training import packed_ranks
from tests.training.packed import write_reference

pytestmark = pytest.mark.long

BATCH = ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size")


def two_ranks(folder, zero_stage):
    """What rank 0 saw; DeepSpeed exchanges the gradients if a stage of ZeRO is given."""
    write_reference(folder)
    environ = {}
    if zero_stage:
        config = dict.fromkeys((*BATCH, "gradient_clipping"), "auto")
        config["zero_optimization"] = {"stage": zero_stage}
        config["zero_allow_untested_optimizer"] = True
        file = folder / "deepspeed.json"
        file.write_text(json.dumps(config))
        environ = {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file),
        }
    run_ranks(folder, packed_ranks.learn, folder, environ=environ)
    return json.loads((folder / "rank-0" / "found.json").read_text())


@pytest.mark.parametrize("zero_stage", [None, 3])
def test_what_is_learned_does_not_depend_on_the_passes(tmp_path, zero_stage):
    if zero_stage:
        needs_deepspeed()
    cases = two_ranks(tmp_path, zero_stage)
    assert len(cases) == 2
    for case, found in cases.items():
        whole, packed = found["whole"], found["packed"]
        for ours, theirs in zip(packed["steps"], whole["steps"], strict=True):
            for name in ("loss", "grad_norm", "entropy", *(["kl"] if case == "kl" else [])):
                expected = pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
                assert ours[name] == expected, (case, name)
        assert len(packed["exchanged"]) == 2 * 3  # one process alone would need two passes
        if not zero_stage:  # ZeRO exchanges gradients in each pass
            assert whole["exchanged"] == [True, True]
            assert packed["exchanged"] == [False, False, True] * 2
