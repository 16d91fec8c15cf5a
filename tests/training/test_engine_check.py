"""An engine that plays with other weights than the trainer's is found before anything is played."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from miner.background_loop import BackgroundLoop
from miner.inference.engines import MemoryTrial, NewWeights, TransformersEngine
from miner.inference.sampler import EngineLostError
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.renderer import ChatRenderer
from miner.training.engine_check import WIDEST_GAP, check_engine
from tests.builders import build_qwen3, build_tokenizer


def check(model: Any, engine_model: Any, others: float, temperature: float = 0.7) -> float:
    """The trainer has `model`; another rank has found the gap `others`."""
    tokenizer = build_tokenizer()

    def logprobs_of(rows: list[Any]) -> list[torch.Tensor]:
        lines = []
        for row in rows:
            with torch.no_grad():
                logits = model(torch.tensor(row.ids[None])).logits[0] / temperature
            logprobs = logits.log_softmax(-1)
            lines.append(logprobs[row.targets - 1, row.ids[row.targets]])
        return lines

    with BackgroundLoop() as loop, TransformersSampler(engine_model, tokenizer) as sampler:
        return check_engine(
            TransformersEngine(sampler),
            ChatRenderer(tokenizer),
            loop,
            logprobs_of,
            lambda gap: [gap, others],
            temperature,
        )


def test_the_same_weights_leave_what_numerics_do() -> None:
    model = build_qwen3()
    assert check(model, copy.deepcopy(model), others=0.0) < 1e-4
    assert check(model, copy.deepcopy(model), others=0.25) == 0.25


def test_other_weights_are_an_engine_that_is_lost_on_all_ranks() -> None:
    model = build_qwen3()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(20.0).neg_()
    with pytest.raises(EngineLostError, match="does not hold the trainer's weights"):
        check(model, other, others=0.0)
    for elsewhere in (2 * WIDEST_GAP, float("nan")):
        with pytest.raises(EngineLostError):
            check(model, copy.deepcopy(model), others=elsewhere)


def test_the_engine_wakes_beside_the_optimizers_states_once() -> None:
    """The first step shows that both have no room, also one that only learns from teachers."""
    woken: list[str] = []

    class Engine:
        version = 0

        def weights_changed(self, version: int) -> None:
            self.version = version

        def playing(self) -> Any:
            woken.append(f"with the weights of step {self.version}")
            return nullcontext()

    engine: Any = Engine()
    callbacks: list[Any] = [NewWeights(engine), MemoryTrial(engine)]
    for callback in callbacks:
        callback.on_train_begin(None, SimpleNamespace(global_step=4), None)
    assert (engine.version, woken) == (4, [])  # a run that resumes at step 4
    for step in (5, 6):
        for callback in callbacks:
            callback.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert woken == ["with the weights of step 5"]
