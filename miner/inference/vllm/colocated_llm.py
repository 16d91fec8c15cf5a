"""vLLM's engine in the trainer's process, and the way of weights into it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


@contextmanager
def transformers_as_before(model: torch.nn.Module) -> Iterator[None]:
    """Undo what vLLM changes in transformers as it opens, for the trainer, which shares it.

    It registers custom configurations for some model types (Qwen3.5), from which transformers'
    models cannot be built. An architecture that it lacks (Olmo 3) is transformers' own class, which
    it changes in place: instances from before could not be called, and none built afterwards. Its
    own instance keeps what it was built with.

    Args:
        model: the trainer's.
    """
    configs = dict(CONFIG_MAPPING._extra_content)
    kinds: set[Any] = set(map(type, model.modules()))
    built = {kind: kind.__init__ for kind in kinds}
    try:
        yield
    finally:
        CONFIG_MAPPING._extra_content = configs
        for kind, build in built.items():
            if kind.__init__ is not build:
                kind.__init__ = build
                kind.__call__ = _plain_but_for_vllm(kind.__call__)


def _plain_but_for_vllm(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that is `compiled`, which skips forward hooks, for vLLM's instance alone."""

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = compiled if "do_not_compile" in vars(module) else torch.nn.Module.__call__
        return run(module, *args, **kwargs)

    return call


class ColocatedLLM:
    """One engine for each rank, with a whole copy of the model.

    Args:
        base: folder of the base model, whose weights it begins with.
        weights: yields the weights to sample with, one by one; collective under ZeRO-3.
        stored: gives one of them the names and shapes that vLLM loads.
        sleeps: true if it gives its memory back in between, which vLLM for CPUs cannot; if so it is
            asleep at first, and without weights.
        options: vLLM's, such as `dtype`.

    Attributes:
        llm: vLLM's.
    """

    def __init__(
        self,
        base: str,
        weights: Callable[[], Iterator[tuple[str, torch.Tensor]]],
        *,
        stored: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
        sleeps: bool,
        **options: Any,
    ) -> None:
        from vllm import LLM

        self._weights = weights
        self._stored = stored
        self._sleeps = sleeps
        self.llm = LLM(
            model=base,
            enable_sleep_mode=sleeps,
            distributed_executor_backend="external_launcher",  # this process is one of the ranks
            max_num_batched_tokens=4096,  # vLLM's own is large, and it reserves memory for that
            logprobs_mode="processed_logprobs",  # those of the distribution it draws from
            language_model_only=True,  # no part for images takes memory, or the time of a trial
            **options,
        )
        if sleeps:
            self.llm.sleep(level=2)

    def sync_weights(self) -> None:
        """Load the current weights, and drop caches of older ones; wakes their memory."""
        from miner.inference.vllm.reload import reloading

        if self._sleeps:
            torch.cuda.empty_cache()  # vLLM maps its own memory, which torch's cache would hold
            self.llm.wake_up(tags=["weights"])
        model = self.llm.llm_engine.model_executor.driver_worker.model_runner.model
        with reloading(self.llm):  # once awake: waking puts vLLM's own buffers back
            for name, weight in self._weights():
                model.load_weights([*self._stored({name: weight}).items()])
        self.llm.reset_prefix_cache()
