"""Reloading a whole model into a running vLLM, on a GPU and on a CPU.

vLLM's CPU build multiplies with packed copies of the weights, so that nothing can be written into
its layers one tensor at a time: a reload buffers what arrives and packs each layer once it is
whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config import ModelConfig, set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


def finish_reload(model: Any, config: ModelConfig, *, on_cpu: bool) -> None:
    """Put everything that was loaded in place."""
    finalize_layerwise_reload(model, config)
    if not on_cpu:
        return
    for layer in model.modules():
        # Nothing is loaded into a head that is tied to the embedding. It shares the new weights,
        # but its packed copy is still of the old ones (seen with vLLM 0.31).
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def reloading_on_cpu(llm: Any) -> Iterator[None]:
    """Inside, weights may be loaded into the engine of this process tensor by tensor."""
    engine = llm.llm_engine
    model = engine.model_executor.driver_worker.model_runner.model
    with set_current_vllm_config(engine.vllm_config):
        initialize_layerwise_reload(model)
        yield
        finish_reload(model, engine.vllm_config.model_config, on_cpu=True)
