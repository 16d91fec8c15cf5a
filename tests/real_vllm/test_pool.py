"""Made models of the pool's architectures, served by vLLM in bfloat16: logprobs are transformers',
also of weights that vLLM is sent.

`EVERY_BASE=1 python -m pytest tests/real_vllm/test_pool.py` serves all of docs/base_models.md;
without the variable one of them is served, whose cache is the least usual, and the mixture of
experts that is of its kind.
"""

import json
import os
from pathlib import Path

import pytest

from tests.base_models.pool import MIXTURES, POOL, PoolBase
from tests.real_vllm.gpu_bases import made
from tests.real_vllm.here import needs_real_vllm, python_with_vllm
from tests.real_vllm.models import assert_replies_of

needs_real_vllm()
pytestmark = pytest.mark.long

SERVED = [
    base
    for base in (*POOL, *MIXTURES)
    if os.environ.get("EVERY_BASE") or base.kind.startswith("lfm2")
]
REFUSED = {
    "olmo_hybrid": "module 'triton' has no attribute 'set_allocator'",
    "a Nemotron of experts": "is_act_and_mul=False is supported only for CUDA",
    "qwen3_5": "['Qwen3_5ForCausalLM'] failed to be inspected",  # it imports torchvision
}
"""Reasons why vLLM for CPUs cannot run an architecture, by its type or name."""


@pytest.mark.parametrize("base", SERVED, ids=lambda base: f"{base.kind}-{base.bases[0]}")
def test_its_replies_have_the_logprobs_of_transformers(base: PoolBase, tmp_path: Path) -> None:
    folder, out = made(base, tmp_path), tmp_path / "replies.json"
    words = map(str, (folder / "base", folder / "sent", out))
    done = python_with_vllm("-m", "tests.real_vllm.pool_program", *words)
    refused = REFUSED.get(base.bases[0], REFUSED.get(base.kind))
    if refused:
        assert refused in done.stderr, done.stderr[-6000:]
        return
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(out.read_text())
    assert found["packs again"] == (base in MIXTURES)
    for name in ("base", "sent", "sent again"):
        assert_replies_of(folder / name.split()[0], found[name])
