"""Peak memory of a step by torch's tracker, on fake tensors, beside the planner's number.

`python -m benchmarks.memory`; with `--gpu` the step is computed on one, and beside the planner's
number stands what its allocator held.

A model of the real shape, without weights, goes through a step of one process: two passes, with
and without checkpointed layers, through TRL's fused head, backward, Adam with its moments. On fake
tensors the head's tiles are folded in place, as its Triton kernels do on a GPU. No number has the
CUDA context or fragmentation in it, which the planner adds. The tracker rounds a tensor up to 512
bytes, as CUDA's allocator does.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config
from trl.kernels import chunked_logprob
from trl.trainer.utils import add_fused_lm_head

from entrypoint.hardware import GIB
from entrypoint.memory import TrainerLoad, Tuning, trainer_activations, trainer_states
from entrypoint.pretended import NAMED
from miner.rollout.mamba import prepare_mamba

MEASURED = ("0.5B", "1.5B", "3B", "7B", "8B")
TIED = ("0.5B", "1.5B", "3B")
"""Sizes whose head is the embedding, by their config.json files."""


def config_of(size: str) -> Any:
    """The configuration of a named size."""
    family, _, shape = NAMED[size]
    kind = Qwen2Config if family.startswith("Qwen") else LlamaConfig
    return kind(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        tie_word_embeddings=size in TIED,
    )


class PeakTracker(MemTracker):
    """Keeps the peak alone: its parent visits every module at every operation, and hooks gradients
    that frozen weights cannot have."""

    def _update_peak_stats(self, peak_state: object) -> None:
        for device, held in self._curr_mem_snap.items():
            self._peak_mem[device] = max(self._peak_mem.get(device, 0), held["Total"])

    def _track_module_params_and_buffers(
        self, module: torch.nn.Module, install_grad_hooks: bool = True
    ) -> tuple[int, int]:
        for held, kind in (
            (module.parameters(recurse=False), _MemRefType.PARAM),
            (module.buffers(recurse=False), _MemRefType.BUFFER),
        ):
            for tensor in held:
                self._update_and_maybe_create_winfos(tensor, kind)
        return 0, 0

    @property
    def peak(self) -> int:
        """Bytes."""
        return max(self._peak_mem.values())


def tracked_peak(config: Any, load: TrainerLoad, rows: int = 4) -> int:
    """Most bytes held at once in a step of a model of `config`, in one process."""
    model = meta_model(config, load)
    with FakeTensorMode(allow_non_fake_inputs=True), folded_in_place():
        optimizer = placed(model, "cpu")
        tracker = PeakTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            step(model, optimizer, load, rows, tracker.reset_mod_stats)
        return tracker.peak


def allocated_peak(config: Any, load: TrainerLoad) -> int:
    """The same step's most bytes of tensors on the GPU."""
    gc.collect()  # the model before
    torch.cuda.reset_peak_memory_stats()
    model = meta_model(config, load)
    step(model, placed(model, "cuda"), load)
    return torch.cuda.max_memory_allocated()


def meta_model(config: Any, load: TrainerLoad) -> Any:
    """A model on no device, as PEFT cannot move fake parameters."""
    full = load.tuning == "full"
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32 if full else torch.bfloat16
        )
        prepare_mamba(model)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        if load.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if not full:
            model.enable_input_require_grads()
            adapters = LoraConfig(r=load.lora_rank, target_modules="all-linear")
            model = get_peft_model(model, adapters, low_cpu_mem_usage=True)  # in float32
    return model


def placed(model: Any, device: str) -> torch.optim.Optimizer:
    """Give `model` memory there, and return its optimizer, which has made a step."""
    model.to_empty(device=device).train()
    model.tie_weights()  # it gave a tied head a tensor of its own
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    for weight in trained:  # a step before, for the moments
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    load: TrainerLoad,
    rows: int = 4,
    after_pass: Callable[[], None] = lambda: None,
) -> None:
    """Two passes, of which the second finds the first one's gradients, and the optimizer's step."""
    device = model.device
    ids = torch.zeros((rows, load.tokens // rows), dtype=torch.int64, device=device)
    for _ in range(2):
        with torch.autocast(device.type, torch.bfloat16):
            found = model(input_ids=ids, shift_labels=ids, fused_lm_head=True)
        found.log_probs.sum().backward()
        after_pass()
    optimizer.step()


@contextmanager
def folded_in_place() -> Iterator[None]:
    """Within it TRL's head makes no temporaries of a tile, as with its Triton kernels."""
    with ExitStack() as stack:
        for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
            stack.enter_context(patch.object(chunked_logprob, name, lambda *_, **__: None))
        yield


def planned(load: TrainerLoad) -> int:
    """The planner's bytes for the same, without context."""
    return sum(size for _, size in (*trainer_states(load), *trainer_activations(load)))


def main(arguments: Sequence[str] | None = None) -> None:
    """One line for each size and tuning."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", allow_abbrev=False)
    parser.add_argument("--sizes", nargs="+", choices=MEASURED, default=list(MEASURED))
    parser.add_argument("--tokens", type=int, default=8192, help="of a pass")
    parser.add_argument(
        "--checkpointing", nargs="+", choices=("on", "off"), default=["on", "off"], metavar="on|off"
    )
    parser.add_argument("--gpu", action="store_true", help="compute the steps on one")
    asked = parser.parse_args(arguments)
    if asked.tokens < 4:
        parser.error(f"--tokens {asked.tokens}: expected at least 4")
    way, peak = ("allocated", allocated_peak) if asked.gpu else ("tracked", tracked_peak)
    columns = ("parameters", "tuning", "checkpointing")
    print(f"| {' | '.join(columns)} | {way}, GiB | planned, GiB | planned / {way} |")
    print("|---" * 6 + "|")
    tunings: tuple[Tuning, ...] = ("full", "lora")
    for row in product(asked.sizes, tunings, asked.checkpointing):
        size, tuning, checkpointing = row
        shape = NAMED[size][2]
        load = TrainerLoad(shape, tuning, 1, 0, asked.tokens, checkpointing=checkpointing == "on")
        wanted = planned(load)
        try:
            found = peak(config_of(size), load)
            numbers = f"{found / GIB:.1f} | {wanted / GIB:.1f} | {wanted / found:.2f}"
        except torch.OutOfMemoryError:
            numbers = f"more than there is | {wanted / GIB:.1f} |"
        print(f"| {' | '.join(row)} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
