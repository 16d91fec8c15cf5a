"""The model that is trained, as loaded from the base model's folder and as written back."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import PreTrainedModel

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.zero import loading_whole
from miner.inference.merged_weights import merged_weights, weights_on_cpu
from miner.inference.transformers.sampler import eos_token_ids
from miner.inference.vllm.replies import ReplyRules
from miner.model_class import freeze_outside_text, outside_text
from miner.publishing.base_files import put_chat_template
from miner.publishing.structure import read_headers, weight_files
from miner.publishing.write_weights import base_dtype, by_base_names, write_trained_model
from miner.rollout.model_folder import load_model_folder

MAMBA = ("nemotron_h", "mamba", "mamba2", "falcon_mamba", "falcon_h1")
"""Types whose kernels take the weight of `out_proj` past its module: PEFT adapts none there."""


class Learner:
    """Model, tokenizer and renderer.

    Attributes:
        base: folder of the base model.

    Raises: `ConfigurationError` if the folder's model or tokenizer cannot be used.
    """

    def __init__(self, settings: Settings, base: Path) -> None:
        self.base = base
        self._dtype = weights_dtype(settings)
        loaded = load_model_folder(base, self._dtype)
        check_finite(loaded.model, base)
        self.tokenizer, self.renderer = loaded.chat.tokenizer, loaded.chat.renderer
        self._in_base = read_headers(base)
        self._fixed_template = loaded.chat.fixed_template
        self._no_change: dict[str, torch.Tensor] = {}
        self.model: Any = loaded.model
        remove_dropout(loaded.model)
        freeze_outside_text(loaded.model)
        if settings.model.tuning == "full" and settings.model.last_layers:
            freeze_below(loaded.model, settings.model.last_layers)
        if settings.model.tuning == "lora":
            self.model = with_adapters(loaded.model, settings)
            self._no_change = {name: p.detach().clone() for name, p in self.trained.items()}

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by their names in the model."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def untrained_weights(self) -> dict[str, torch.Tensor]:
        """Values of `trained` with which the model computes as the base does."""
        if self._no_change:
            return self._no_change
        with loading_whole():
            base = load_model_folder(self.base, self._dtype).model
        named = dict(base.named_parameters())
        return {name: named[name].data for name in self.trained}

    def reply_rules(self, context: int) -> ReplyRules:
        """Limits of requests and replies of an engine that serves this model in `context`
        tokens."""
        return ReplyRules(
            eos_token_ids(self.model, self.tokenizer),
            vocabulary=self.model.config.get_text_config().vocab_size,
            context=min(context, self.context),
        )

    @property
    def context(self) -> int:
        """Tokens that the model can attend to."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", sys.maxsize))

    @contextmanager
    def as_published(self) -> Iterator[None]:
        """Inside, the model computes with the weights that publishing would write.

        Adapters are merged into the base's weights and rounded to their dtype, which takes a part
        of a small change away; outside, both stay as they are, to the last bit. With every weight
        trained nothing differs.
        """
        if not isinstance(self.model, PeftModel):
            yield
            return
        adapted = {
            name.replace(".base_layer", ""): parameter
            for name, parameter in self._base_model.named_parameters()
            if ".base_layer." in name
        }
        merged = {name: weight for name, weight in merged_weights(self.model) if name in adapted}
        kept = {name: parameter.data for name, parameter in adapted.items()}
        with self.model.disable_adapter():
            try:
                for name, parameter in adapted.items():
                    parameter.data = merged[name]
                yield
            finally:
                for name, parameter in adapted.items():
                    parameter.data = kept[name]

    def as_stored(self, weight: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One tensor as the base's files have it, from which vLLM loads: renamed, fused ones split.

        Unchanged where it is one of several that are fused there.
        """
        stored = by_base_names(self._base_model, weight, self._in_base)
        shapes = {name: self._in_base[name].shape for name in stored if name in self._in_base}
        return stored if shapes == {n: tuple(t.shape) for n, t in stored.items()} else weight

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Write `weights` into the existing `folder`, all else as the base has it.

        Args:
            weights: of the whole model, as `weights_on_cpu` returns them.
        """
        write_trained_model(self.base, self._base_model, weights, folder)
        if self._fixed_template is not None:
            put_chat_template(folder, self._fixed_template)

    @property
    def _base_model(self) -> PreTrainedModel:
        base: Any = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        whole: PreTrainedModel = base
        return whole


def remove_dropout(model: torch.nn.Module) -> None:
    """Let `model` compute in training as it does otherwise: the sampler drops nothing, and both
    must agree on every logprob. Its config, which is published, keeps its rates."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def check_finite(model: torch.nn.Module, folder: Path) -> None:
    """Raises: `ConfigurationError` naming the first tensor from which nothing can be learned."""
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ConfigurationError(
                f"the model in {folder} cannot be trained: tensor {name!r} holds values that are "
                "NaN or infinite (too large for float16 when it was saved?); it is published as "
                "it came"
            )


def weights_dtype(settings: Settings) -> torch.dtype:
    """Dtype in which weights are held.

    Full fine-tuning holds float32 under bfloat16 computation (autocast): its steps are far smaller
    than the distance of two bfloat16 weights, and would be lost. DeepSpeed keeps its own float32
    copies for that, of adapters too, which are float32 otherwise.
    """
    if settings.model.tuning == "full" and not settings.optimizer.zero_stage:
        return torch.float32
    dtype: torch.dtype = getattr(torch, settings.model.dtype)
    return dtype


def with_adapters(model: PreTrainedModel, settings: Settings) -> Any:
    """`model` frozen, with adapters on all its linear layers but the output head.

    They start as no change at all, so that the first rollout is the base model's.
    """
    torch.manual_seed(settings.seed)
    rank, adapted = settings.model.lora_rank, settings.model.last_layers
    left_out = [rf"{re.escape(name)}(\..*)?" for name in outside_text(model)]
    if adapted:
        left_out.append(in_layers(range(_layers(model) - adapted)))
    if model.config.model_type in MAMBA:
        left_out.append(r".*\.out_proj")
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,  # as `remove_dropout`
        target_modules="all-linear",
        exclude_modules="|".join(left_out) or None,
    )
    # DeepSpeed keeps its own float32 copies, and ZeRO-3 fails where adapters are no bfloat16
    return get_peft_model(model, adapters, autocast_adapter_dtype=not settings.optimizer.zero_stage)


def freeze_below(model: PreTrainedModel, trained: int) -> None:
    """Freeze all but the last `trained` layers."""
    layers = _layers(model)
    learns = re.compile(in_layers(range(layers - trained, layers)))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = parameter.requires_grad and bool(learns.fullmatch(name))


def in_layers(numbers: range) -> str:
    """A regular expression for the names of what is in one of these layers."""
    return rf".*\b(layers|h|blocks)\.({'|'.join(map(str, numbers))})\..*"


def _layers(model: PreTrainedModel) -> int:
    count: int = model.config.get_text_config().num_hidden_layers
    return count


def write_checkpoint_model(base: Path, checkpoint: Path, destination: Path) -> None:
    """Write the model of a checkpoint, an adapter or all weights, as it would be published."""
    model = load_model_folder(base, base_dtype(base)).model
    if (checkpoint / "adapter_config.json").is_file():
        weights = weights_on_cpu(PeftModel.from_pretrained(model, checkpoint))
    else:  # by the model's names, as the trainer saves them
        weights = {n: w for file in weight_files(checkpoint) for n, w in load_file(file).items()}
    write_trained_model(base, model, weights, destination)
