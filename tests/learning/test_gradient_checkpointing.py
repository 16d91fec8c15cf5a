"""Activations computed again in the backward pass: the same gradients, and a sampler's cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.inference.transformers.forward import CachedForward, PlainForward, evaluation_mode
from miner.learning import trainer
from tests.training import rank_program

PACKED, ONE_PASS = 60, 1_000_000
"""Tokens: many passes of rows cut by their length, or all rows at once."""


@pytest.mark.parametrize(
    ("overrides", "on_a_gpu", "on_a_cpu"),
    [
        ([], True, False),
        (["model.gradient_checkpointing=true"], True, True),
        (["model.gradient_checkpointing=false"], False, False),
    ],
    ids=["unset", "on", "off"],
)
def test_it_is_for_gpus_unless_it_is_set(
    overrides: list[str], on_a_gpu: bool, on_a_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load(None, overrides, environ={})
    made: dict[str, Any] = {}
    monkeypatch.setattr(trainer, "GRPOConfig", lambda **options: made.update(options))
    for cuda, expected in ((True, on_a_gpu), (False, on_a_cpu)):
        trainer.grpo_config(settings, cuda=cuda)
        assert made["gradient_checkpointing"] is expected


class Step:
    """One optimizer step: its gradients before clipping, and how often a layer was computed."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        settings = rank_program.settings_of(folder, ["optimizer.max_steps=1", *overrides])
        learner = rank_program.make_trainer(settings, Ranks())
        self.gradients: dict[str, torch.Tensor] = {}
        self.computed = 0
        model: Any = learner.model
        inner = model.get_base_model() if isinstance(model, PeftModel) else model
        inner.model.layers[0].mlp.register_forward_pre_hook(self._count)
        clip: Callable[[Any], Any] = learner._clip_grad_norm

        def look_and_clip(model: torch.nn.Module) -> Any:
            named = model.named_parameters()
            self.gradients = {n: p.grad.clone() for n, p in named if p.grad is not None}
            return clip(model)

        learner._clip_grad_norm = look_and_clip  # type: ignore[method-assign]
        learner.train()

    def _count(self, *_: object) -> None:
        self.computed += 1


@pytest.mark.parametrize("tokens", [PACKED, ONE_PASS])
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_gradients_are_those_of_activations_that_were_kept(
    tuning: str, tokens: int, tmp_path: Path
) -> None:
    common = (f"model.tuning={tuning}", f"optimizer.micro_batch_tokens={tokens}")
    kept = Step(tmp_path / "kept", "model.gradient_checkpointing=false", *common)
    again = Step(tmp_path / "again", "model.gradient_checkpointing=true", *common)
    assert again.computed > kept.computed > 0
    assert again.gradients.keys() == kept.gradients.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in kept.gradients.values())
    for name, gradient in kept.gradients.items():
        torch.testing.assert_close(again.gradients[name], gradient, atol=1e-6, rtol=1e-4)


def test_a_model_in_training_mode_samples_from_its_cache_all_the_same(tmp_path: Path) -> None:
    """transformers drops the cache of a model in training mode that recomputes."""
    settings = rank_program.settings_of(tmp_path, ["model.gradient_checkpointing=true"])
    model: Any = rank_program.make_trainer(settings, Ranks()).model
    model.gradient_checkpointing_enable()
    model.train()

    class Row:
        ids, slot, cached = [5, 6, 7, 8], 0, 0

    row: Any = Row()
    with evaluation_mode(model):
        cached = CachedForward(model)
        cached.logits([row])
        row.ids = [*row.ids, 9]
        assert cached.pending(row) == 1
        torch.testing.assert_close(
            cached.logits([row]), PlainForward(model).logits([row]), atol=1e-4, rtol=1e-4
        )
    assert model.training
