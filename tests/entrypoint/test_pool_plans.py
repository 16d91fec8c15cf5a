"""Plans of today's jobs: every base of the pool on the GPUs that the validator gives it."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from entrypoint import main
from entrypoint.job import parse_invocation
from miner.config.contract import GPU_THRESHOLDS, POOL, SWE, SWE_DATASET

DUELS = '{"environment_names": ["othello", "liars_dice"]}'
FINAL = json.dumps({"environment_names": [SWE]})
SWE_BILLIONS = 8.19
QWEN3_4B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}
"""As Qwen3-4B-Instruct-2507's config.json has them."""
STAND_INS = ((1.5, "1.5B"), (3.0, "3B"), (4.0, "4B.json"), (7.0, "7B"), (8.2, "8B"))
"""Known models by billions of parameters; a base is planned as the smallest that is no smaller."""


def plan_of(
    billions: float, job: str, roots: dict[str, str], arguments: Callable[..., list[str]]
) -> str:
    """GPUs by the validator's table, and what the plan makes of them."""
    count = next(gpus for most, gpus in GPU_THRESHOLDS if billions <= most)
    stand_in = next(name for size, name in STAND_INS if billions <= size)
    if stand_in.endswith(".json"):
        file = Path(roots["MINER_CHECKPOINTS_DIR"]) / stand_in
        file.write_text(json.dumps(QWEN3_4B))
        stand_in = str(file)
    data = {"MINER_DATASETS_DIR": "/data", "MINER_DATASETS": SWE_DATASET}
    environ = {**os.environ, **roots, "ENVIRONMENT_SERVER_URLS": "", **data}
    words = ["--dry-run", "--gpus", f"{count}xH100-80GB", "--model-config", stand_in]
    given = arguments(*words, dataset_type=job, hours_to_complete="1.5")
    prepared = main.prepare(parse_invocation(given, environ), time.time(), environ)
    plan, wanted = prepared.topology, prepared.settings
    assert all(moment.fits for moment in plan.memory)
    assert len({*plan.inference_gpus, *plan.trainer_gpus}) == count
    assert (plan.dtype, prepared.plan.served_dtype) == ("bfloat16", "bfloat16")
    parts = (
        f"{count} GPU" + "s" * (count > 1),
        f"{plan.layout}, {plan.tuning}, ZeRO-{plan.zero_stage}",
        f"{len(plan.trainer_gpus)} train, {len(plan.inference_gpus)} generate",
        f"passes of {plan.pass_tokens}" + ", recomputed" * plan.checkpointing,
        f"{wanted.environment.channel} by {prepared.recipe}",
    )
    return " | ".join(parts)


def test_every_base_and_the_final_have_a_plan(
    roots: dict[str, str],
    arguments: Callable[..., list[str]],
    golden: Callable[[str, str], None],
) -> None:
    lines = [f"{name} | {plan_of(size, DUELS, roots, arguments)}" for name, size in POOL.items()]
    lines.append(f"{SWE} | {plan_of(SWE_BILLIONS, FINAL, roots, arguments)}")
    golden("pool.txt", "\n".join(lines) + "\n")
