"""A sampler of a model on each engine, vLLM's being stand-ins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from miner.inference.sampler import Sampler
from miner.inference.transformers.sampler import TransformersSampler
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.inference.vllm.server_sampler import VllmServerSampler
from tests.rollout.sampling import RULES
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.engine_double import EngineDouble
from tests.stub_vllm.serving import stub_in_thread

ENGINES = ("transformers", "vllm server", "vllm colocated")


@asynccontextmanager
async def sampler_on(
    engine: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> AsyncIterator[Sampler]:
    if engine == "transformers":
        with TransformersSampler(model, tokenizer) as sampler:
            yield sampler
    elif engine == "vllm server":
        with stub_in_thread(StubVllm(model, tokenizer)) as url:
            server = VllmServerSampler(VllmServer(url), RULES)
            yield server
            await server.server.close()
    else:
        double = EngineDouble(model, tokenizer=tokenizer)
        colocated = VllmColocatedSampler(double, RULES, make_params=dict)
        yield colocated
        colocated.close()
