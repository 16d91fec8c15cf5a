"""Table of the miner's calls to vLLM and TRL, and a check of the installed ones against it.

`python -m tests.vllm_surface` imports both (no GPU is needed), tries every call of the tables
against the real signature, and ends with status 1 and one line for each that does not fit. It
imports nothing else, so that an image can read it from standard input. Stand-ins for the engine are
held to the same tables.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call as the code makes it: positional arguments by number, keywords by name."""

    where: str
    name: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    method: bool = True


SAMPLING = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("stop", "stop_token_ids", "logprobs", "seed", "output_kind", "detokenize"),
)
ENGINE = "vllm.v1.engine.llm_engine:LLMEngine"
LLM = "vllm:LLM"
RELOAD = "vllm.model_executor.model_loader.reload"
TRANSFER = "vllm.distributed.weight_transfer.base:WeightTransferEngine"

ENGINE_CALLS = (
    Call(ENGINE, "add_request", 3),
    Call(ENGINE, "step"),
    Call(ENGINE, "abort_request", 1),
    Call(ENGINE, "has_unfinished_requests"),
)
CALLS = (
    *ENGINE_CALLS,
    Call("vllm", "SamplingParams", 0, SAMPLING, method=False),
    Call(LLM, "sleep", keywords=("level",)),
    Call(LLM, "wake_up", keywords=("tags",)),
    Call(LLM, "reset_prefix_cache"),
    Call("vllm.v1.engine.core_client:InprocClient", "shutdown"),
    Call(RELOAD, "initialize_layerwise_reload", 1, method=False),
    Call(RELOAD, "finalize_layerwise_reload", 2, method=False),
    Call(TRANSFER, "parse_update_info", 1),
    Call(TRANSFER, "init_transfer_engine", 1),
    Call(TRANSFER, "start_weight_update"),
    Call(TRANSFER, "update_weights", 1),
    Call(TRANSFER, "receive_weights", 1),
    Call(TRANSFER, "finish_weight_update"),
    Call(
        "vllm.distributed.weight_transfer:WeightTransferEngineFactory", "register_engine", 2,
        method=False,
    ),
)  # fmt: skip

FIELDS: Mapping[str, tuple[str, ...]] = {
    "vllm.outputs:CompletionOutput": ("token_ids", "logprobs", "finish_reason", "stop_reason"),
    "vllm.logprobs:Logprob": ("logprob",),
    "vllm.engine.arg_utils:EngineArgs": (
        *("dtype", "data_parallel_size", "max_model_len", "max_num_seqs"),
        *("gpu_memory_utilization", "weight_transfer_config", "worker_extension_cls"),
        *("logprobs_mode", "max_logprobs", "model", "seed", "enable_sleep_mode"),
        "language_model_only",
        *("distributed_executor_backend", "max_num_batched_tokens"),
    ),
}
"""The last are flags of `vllm serve` that the plan sets, and options of the trainer's engine."""

ROUTES: Mapping[str, tuple[str, ...]] = {
    "vllm.entrypoints.serve.dev.rlhf.api_router": (
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/update_weight_version",
        "/weight_info",
    ),
    "vllm.entrypoints.serve.dev.cache.api_router": ("/reset_prefix_cache",),
    "vllm.entrypoints.serve.dev.server_info.api_router": ("/server_info",),
    "vllm.entrypoints.openai.completion.api_router": ("/v1/completions",),
}

REQUEST_FIELDS = (
    *("model", "prompt", "return_token_ids", "return_tokens_as_token_ids"),
    *SAMPLING[:-2],
    *("n", "structured_outputs"),
)
REQUEST = "vllm.entrypoints.openai.completion.protocol:CompletionRequest"


def misfits(calls: tuple[Call, ...], owner: object | None = None) -> Iterator[str]:
    """One sentence for each call that does not fit; `owner` stands in for what the table names."""
    for call in calls:
        label = f"{call.where}.{call.name}"
        target = getattr(owner or found(call.where), call.name, None)
        if target is None:
            yield f"{label} does not exist"
            continue
        bound = owner is not None or not call.method
        positional = (None,) * (call.positional + (not bound))
        try:
            inspect.signature(target).bind(*positional, **dict.fromkeys(call.keywords))
        except TypeError as error:
            yield f"{label}{inspect.signature(target)} does not take our call: {error}"


def found(where: str) -> Any:
    """The module, or the attribute of it after a colon."""
    module, _, attribute = where.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, attribute) if attribute else imported


def installed_misfits() -> Iterator[str]:
    """Everything in which the installed vLLM and TRL differ from what is called."""
    yield from misfits(CALLS)
    for where, names in FIELDS.items():
        known = {field.name for field in fields(found(where))}
        yield from (f"{where} has no field {name}" for name in names if name not in known)
    for where, paths in ROUTES.items():
        served = {route.path for route in found(where).router.routes}
        yield from (f"{where} does not serve {path}" for path in paths if path not in served)
    known = set(found(REQUEST).model_fields)
    yield from (f"{REQUEST} has no field {name}" for name in REQUEST_FIELDS if name not in known)


def main() -> int:
    """Print what does not fit; the exit status says whether all does."""
    problems = list(installed_misfits())
    for problem in problems:
        print(problem)
    versions = ", ".join(f"{name} {found(name).__version__}" for name in ("vllm", "trl"))
    count = len(CALLS) + sum(map(len, FIELDS.values())) + sum(map(len, ROUTES.values()))
    count += len(REQUEST_FIELDS)
    print(f"{versions}: {count - len(problems)} of {count} calls, fields and routes fit")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
