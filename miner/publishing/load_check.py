"""The full check of a model folder: every weight read, the model loaded as the grader loads it.

Invariants:
* weights are read one tensor at a time, in pieces; beside the pieces, one copy of the model is in
  memory (the loaded model itself);
* the caller has made the structural check before: files are complete.

It runs on the CPU. In a process that trains with DeepSpeed ZeRO-3, `from_pretrained` would shard
the model: use `fresh_process.verify` there.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from miner.model_class import TOKENIZER_FILES, model_class
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import ModelReport, weight_files

PIECE = 2**24
"""Elements that are looked at in one go."""


def check_loaded(folder: Path, report: ModelReport, *, strict: bool, dtype: str) -> ModelReport:
    """Complete the structural `report` of `folder` by reading and loading everything.

    Args:
        strict: true if weights that are not finite or beyond `dtype`, and logits that are not
            finite in it, are errors; otherwise they are warnings, as for a base model that is
            published as it came.
        dtype: torch's name of what the grader serves in.

    Raises: `UnverifiedModelError` naming the first defect.
    """
    concerns = _weight_concerns(folder, dtype)
    tokenizer = _load_tokenizer(folder, strict=strict)
    model, unexpected = _load_model(folder, dtype)
    notes = [f"{len(unexpected)} unused tensors, such as {unexpected[0]!r}"] if unexpected else []
    try:
        if not _logits_are_finite(model, tokenizer):
            concerns.append(f"the logits are not finite when the model runs in {dtype}")
    except RuntimeError as error:  # an operation without a kernel of that dtype on the CPU
        notes.append(f"not run in {dtype} on this CPU: {_first_line(error)}")
    if strict and concerns:
        raise UnverifiedModelError(f"{folder}: {concerns[0]}.")
    return replace(report, loaded=True, warnings=(*report.warnings, *concerns, *notes))


def _weight_concerns(folder: Path, dtype: str) -> list[str]:
    limit = torch.finfo(getattr(torch, dtype)).max
    unsound, largest = "", (limit, "")
    for name, piece in _float_pieces(folder):
        low, high = torch.aminmax(piece.float())
        if torch.isfinite(low + high):
            size = max(-low.item(), high.item())
            largest = (size, name) if size > largest[0] else largest
        else:
            unsound = unsound or name
    concerns = [f"tensor {unsound!r} holds values that are NaN or infinite"] if unsound else []
    if largest[1]:
        concerns.append(
            f"weight {largest[0]:g} in {largest[1]!r} is beyond {dtype} ({limit:g}), which the"
            " grader casts to"
        )
    return concerns


def _float_pieces(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in weight_files(folder):
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the handle is not a mapping
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and tensor.numel():
                    for piece in tensor.flatten().split(PIECE):
                        yield name, piece


def _load_tokenizer(folder: Path, *, strict: bool) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **TOKENIZER_FILES)
    except Exception as error:  # any error of transformers on a broken folder
        raise UnverifiedModelError(
            f"{folder}: the tokenizer does not load: {_first_line(error)}."
        ) from error
    for role in ("chat_template", "eos_token", "pad_token"):
        if strict and not getattr(tokenizer, role, None):
            raise UnverifiedModelError(f"{folder}: the loaded tokenizer has no {role}.")
    return tokenizer


def _load_model(folder: Path, dtype: str) -> tuple[Any, list[str]]:
    """The model in `dtype`, and the names of tensors that it has no place for."""
    try:
        loaded: Any = model_class(folder).from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise UnverifiedModelError(
            f"{folder} does not load with transformers: {_first_line(error)}."
        ) from error
    model, info = loaded
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if info[kind]:
            examples = ", ".join(str(item) for item in sorted(info[kind])[:3])
            raise UnverifiedModelError(
                f"{folder}: {len(info[kind])} {kind} after loading, such as {examples}: the weights"
                " are not those of config.json's architecture."
            )
    return model.eval(), sorted(info["unexpected_keys"])


@torch.inference_mode()
def _logits_are_finite(model: Any, tokenizer: Any) -> bool:
    text = "1"
    if getattr(tokenizer, "chat_template", None):
        # a template that raises is the trainer's to fix or refuse; the weights are judged here
        with suppress(Exception):
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": "1"}], add_generation_prompt=True, tokenize=False
            )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    return bool(torch.isfinite(model(input_ids=ids).logits).all())


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(". :")
