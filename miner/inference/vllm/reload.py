"""Reloading a whole model into a running vLLM, on a GPU and on a CPU.

vLLM's CPU build multiplies with packed copies of the weights, and on some GPUs with permuted ones
of experts, so that nothing can be written into such layers one tensor at a time: a reload buffers
what arrives and packs each layer once it is whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config import ModelConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform


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
        # Experts are packed when they are loaded for the first time, and never again.
        if isinstance(layer, RoutedExperts):
            layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)


@contextmanager
def reloading(llm: Any) -> Iterator[None]:
    """Inside, weights may be loaded into the engine of this process tensor by tensor."""
    engine = llm.llm_engine
    model = engine.model_executor.driver_worker.model_runner.model
    on_cpu = current_platform.is_cpu()
    if not on_cpu and not any(isinstance(layer, RoutedExperts) for layer in model.modules()):
        yield
        return
    with set_current_vllm_config(engine.vllm_config):
        initialize_layerwise_reload(model)
        yield
        finish_reload(model, engine.vllm_config.model_config, on_cpu=on_cpu)
