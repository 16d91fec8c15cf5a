"""A stand-in for vLLM's LLMEngine: the same calls, over a tiny model, one token per step."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedModel

from miner.inference.transformers.batching import BatchEngine, DecodeRow
from miner.inference.transformers.forward import CachedForward
from miner.inference.transformers.stop_strings import StopStrings
from tests.stub_vllm.app import finish


@dataclass
class EngineDouble:
    """vLLM's engine, as far as it is called.

    Attributes:
        fails_at: number of the step that raises `failure`.
        garble: called with each output before it is handed out.
        tokenizer: of the model, where stop strings are asked for.
        widths: how many requests ran in each step.
        stepped: set by every step.
    """

    model: PreTrainedModel
    seed: int = 0
    fails_at: int | None = None
    failure: Exception = field(
        default_factory=lambda: RuntimeError("CUDA error: device-side assert triggered")
    )
    garble: Any = None
    tokenizer: Any = None
    max_model_len: int = 500
    widths: list[int] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    stepped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._rows: dict[str, DecodeRow] = {}
        self._stops: dict[DecodeRow, Sequence[str]] = {}
        eos = {self.model.generation_config.eos_token_id}
        self._core = BatchEngine(CachedForward(self.model), eos, max_sessions=256, seed=self.seed)

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: Any,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> str:
        if not isinstance(request_id, str) or request_id in self._rows:
            raise TypeError(f"bad or repeated request id {request_id!r}")
        ids = list(prompt["prompt_token_ids"])
        if len(ids) > self.max_model_len:
            raise ValueError(f"a prompt of {len(ids)} tokens is longer than max_model_len")
        row = DecodeRow(ids, params["max_tokens"], params["temperature"], None)
        if params.get("stop"):
            row.stopped = StopStrings(self.tokenizer, params["stop"])
        self._stops[row] = params.get("stop", ())
        self._rows[request_id] = row
        self._core.admit(row)
        return f"{request_id}-internal"

    def step(self) -> list[Any]:
        if len(self.widths) == self.fails_at:
            raise self.failure
        self.widths.append(len(self._rows))
        self.stepped.set()
        names = {row: name for name, row in self._rows.items()}
        outputs = []
        for row in self._core.step():
            name = names[row]
            if self._rows.pop(name) and row.reply is not None:
                outputs.append(self._output(name, row))
        return outputs

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        for name in request_ids:
            self.aborted.append(name)
            self._rows[name].abandoned = True
            self._rows[name].limit = len(self._rows[name].logprobs)

    def has_unfinished_requests(self) -> bool:
        return bool(self._rows)

    def _output(self, name: str, row: DecodeRow) -> Any:
        ids = list(row.reply.token_ids)
        logprobs = [
            {token: SimpleNamespace(logprob=value, rank=1, decoded_token=None)}
            for token, value in zip(ids, row.reply.logprobs, strict=True)
        ]
        said = SimpleNamespace(
            index=0,
            text="",
            token_ids=ids,
            logprobs=logprobs,
            **finish(row.reply, self._stops.pop(row), self.tokenizer),
        )
        if self.garble:
            self.garble(said)
        held = row.reply.cached_tokens
        return SimpleNamespace(
            request_id=name, outputs=[said], finished=True, num_cached_tokens=held
        )
