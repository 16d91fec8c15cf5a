"""vLLM serves a made model of the pool, and another that it is sent:
`python -m tests.real_vllm.pool_program FOLDER OTHER OUT`.

Runs with the Python that has vLLM. OUT gets ids and logprobs of greedy replies of both to
`POOL_PROMPTS`, the other one's twice, and, on a CPU, whether vLLM would be made to pack its layers
again on a GPU, where it sleeps in between.
Transformers' own model, built before, has its logits afterwards, and so has one that is built then.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams

from miner.config.settings import Settings
from miner.distributed.ranks import ensure_world_variables
from miner.inference.merged_weights import merged_weights
from miner.inference.vllm import reload
from miner.inference.vllm.colocated_llm import ColocatedLLM, transformers_as_before
from miner.learning.learner import Learner
from tests.real_vllm.models import POOL_PROMPTS


def logits(model: Any) -> torch.Tensor:
    hooked = list[bool]()
    hook = model.base_model.register_forward_hook(lambda *_: hooked.append(True))
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([POOL_PROMPTS[0]])).logits
    hook.remove()
    assert hooked == [True]
    return found


def replies(llm: Any) -> list[Any]:
    asked = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True)
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in POOL_PROMPTS]
    found = [reply.outputs[0] for reply in llm.generate(prompts, asked, use_tqdm=False)]
    return [
        [
            list(reply.token_ids),
            [at[token].logprob for token, at in zip(reply.token_ids, reply.logprobs, strict=True)],
        ]
        for reply in found
    ]


def learner_of(folder: str) -> Learner:
    learner = Learner(Settings.load(None, [], environ={}), Path(folder))
    learner.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return learner


def main() -> None:
    torch.set_num_threads(1)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    folder, other = sys.argv[1:3]
    ensure_world_variables()
    trained = AutoModelForCausalLM.from_pretrained(folder).eval()
    before = logits(trained)
    # vLLM's convolution in AVX-512 BF16 has kernels of width 4 alone, LFM2's are of 3: it would not
    # load on a CPU with these instructions
    torch.cpu._is_avx512_bf16_supported = lambda: False
    on_gpu = torch.cuda.is_available()
    learner = learner_of(folder)
    with transformers_as_before(trained):
        engine = ColocatedLLM(
            folder,
            lambda: merged_weights(learner.model),
            stored=lambda weight: learner.as_stored(weight),
            sleeps=on_gpu,
            dtype="bfloat16",
            max_model_len=512,
            max_num_seqs=4,
            gpu_memory_utilization=0.05,
            # not measured on a GPU, whose memory others take meanwhile
            kv_cache_memory_bytes=2**30 if on_gpu else None,
            enforce_eager=True,
            enable_prefix_caching=False,
        )
    for model in (trained, AutoModelForCausalLM.from_pretrained(folder).eval()):
        assert torch.equal(logits(model), before)
    found: dict[str, Any] = {}
    for name, sent in (("base", folder), ("sent", other), ("sent again", other)):
        if on_gpu or sent == other:  # one that sleeps is empty at first
            learner = learner_of(sent)
            engine.sync_weights()
        if on_gpu:
            engine.llm.wake_up(tags=["kv_cache"])
        found[name] = replies(engine.llm)
        if on_gpu:
            engine.llm.sleep(level=2)
    if not on_gpu:
        model = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model
        reload.current_platform = SimpleNamespace(is_cpu=lambda: False)
        with reload.reloading(engine.llm):
            found["packs again"] = any(weight.is_meta for weight in model.parameters())
    Path(sys.argv[3]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
