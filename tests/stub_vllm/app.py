"""The endpoints: completions, models, health, and the development endpoints for weights."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from miner.inference.sampler import Sample, SamplerError, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler, eos_token_ids
from miner.inference.vllm.wire import ENGINE_HEADER, FILE_BACKEND
from tests.stub_vllm.weights import OutOfOrder, WeightReceiver

NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def finish(
    sample: Sample, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> dict[str, str | None]:
    """How vLLM reports an end: a stop string is a "stop" whose reason is that string."""
    if sample.finish_reason != "stop_string":
        return {"finish_reason": sample.finish_reason, "stop_reason": None}
    text = tokenizer.decode(sample.token_ids, skip_special_tokens=True)
    return {"finish_reason": "stop", "stop_reason": next(s for s in stop if s in text)}


class StubVllm:
    """One server's model, its sampler and what was asked of it.

    Attributes:
        calls: every request but completions, as (path, body), in order.
        completions: one (weight version, body) for each completion that was sampled; "engine" in
            the body is the one that the header asked for, or None.
        hung: paths that never answer; `broken`: paths that answer this HTTP status.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "stub",
        seed: int = 0,
        logprobs_mode: str = "processed_logprobs",
        max_model_len: int = 1024,
        backend: str | None = FILE_BACKEND,
        data_parallel_size: int = 1,
        dev_mode: bool = True,
        journal: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._sampler = TransformersSampler(model, tokenizer, seed=seed)
        self._defaults = model.generation_config.to_dict() if model.generation_config else {}
        self._eos = eos_token_ids(model, tokenizer)
        self._tokenizer = tokenizer
        self._name = name
        self._context = max_model_len
        self._engines = data_parallel_size
        self._running = 0
        self.idle = threading.Event()
        self.idle.set()
        self._journal = journal
        self._numbers = itertools.count()
        self._config = {
            "model_config": {
                "logprobs_mode": logprobs_mode,
                "max_model_len": max_model_len,
                "dtype": str(model.dtype),
            },
            "parallel_config": {"data_parallel_size": data_parallel_size},
            "weight_transfer_config": backend and {"backend": backend},
        }
        self.weights = WeightReceiver(model)
        self.calls: list[tuple[str, Any]] = []
        self.completions: list[tuple[str, dict[str, Any]]] = []
        self.hung: set[str] = set()
        self.broken: dict[str, int] = {}
        self.app = Starlette(routes=list(self._routes(dev_mode)))

    def close(self) -> None:
        """End the sampler's thread."""
        self._sampler.close()

    def _routes(self, dev_mode: bool) -> list[Route]:
        posts: dict[str, Callable[[Any], Any]] = {"/v1/completions": self._complete}
        gets: dict[str, Callable[[], Any]] = {
            "/health": lambda: None,
            "/v1/models": lambda: {"object": "list", "data": [{"id": self._name}]},
        }
        if dev_mode:
            posts |= {
                "/start_weight_update": lambda _: self._undisturbed(self.weights.start),
                "/update_weights": lambda b: self._update(b["update_info"]),
                "/finish_weight_update": lambda b: self._finish(b.get("weight_version")),
                "/update_weight_version": lambda b: setattr(
                    self.weights, "version", b["new_version"]
                ),
                "/reset_prefix_cache": lambda asked: {
                    "success": asked["reset_running_requests"] == "true"
                },
            }
            gets |= {
                "/server_info": lambda: {"vllm_config": self._config},
                "/weight_info": lambda: {"weight_version": self.weights.version},
            }
        return [
            *(
                Route(path, self._post(path, answer), methods=["POST"])
                for path, answer in posts.items()
            ),
            *(Route(path, self._get(path, answer)) for path, answer in gets.items()),
        ]

    def _post(
        self, path: str, answer: Callable[[Any], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            raw = await request.body()
            body = await request.json() if raw else dict(request.query_params)
            if path == "/v1/completions":
                body["engine"] = request.headers.get(ENGINE_HEADER)
            else:
                self.calls.append((path, body))
            return await self._answer(path, lambda: answer(body))

        return endpoint

    def _get(
        self, path: str, answer: Callable[[], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await self._answer(path, answer)

        return endpoint

    async def _answer(self, path: str, answer: Callable[[], Any]) -> Response:
        if path in self.hung:
            await asyncio.Event().wait()
        if path in self.broken:
            return JSONResponse({"error": {"message": "told to fail"}}, self.broken[path])
        try:
            said = answer()
            if asyncio.iscoroutine(said):
                said = await said
        except (OutOfOrder, SamplerError) as error:
            return JSONResponse({"error": {"message": str(error)}}, 500)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            return JSONResponse({"error": {"message": message}}, 400)
        return JSONResponse({"message": "done"} if said is None else said)

    def _undisturbed(self, change: Callable[[], None]) -> None:
        if self._running:
            raise OutOfOrder(f"{self._running} requests are running")
        change()

    def _update(self, update_info: dict[str, Any]) -> None:
        self._undisturbed(lambda: self.weights.update(update_info))
        self._sampler.invalidate()

    def _finish(self, version: str | None) -> None:
        self.weights.finish(version)
        self._journal(f"push {version}")

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self._check(body)
        prompt = body["prompt"]
        limit = min(body["max_tokens"], self._context - len(prompt))
        version = self.weights.version
        self._running += 1
        self.idle.clear()
        try:
            stop = tuple(body.get("stop", ()))
            sample = await self._sampler.sample(
                prompt, SamplingParams(limit, body["temperature"], stop)
            )
        finally:
            self._running -= 1
            if not self._running:
                self.idle.set()
        self.completions.append((version, body))
        self._journal(f"sample {version}")
        tokens = [f"token_id:{token}" for token in sample.token_ids]
        logprobs = {
            "text_offset": [0] * len(tokens),
            "tokens": tokens,
            "token_logprobs": list(sample.logprobs),
            "top_logprobs": [
                {token: logprob} for token, logprob in zip(tokens, sample.logprobs, strict=True)
            ],
        }
        choice = {
            "index": 0,
            "text": "",
            "logprobs": logprobs,
            **finish(sample, stop, self._tokenizer),
            "prompt_token_ids": prompt,
            "token_ids": list(sample.token_ids),
        }
        return {
            "id": f"cmpl-{next(self._numbers)}",
            "object": "text_completion",
            "model": self._name,
            "choices": [choice],
            "usage": {"prompt_tokens_details": {"cached_tokens": sample.cached_tokens}},
        }

    def _check(self, body: dict[str, Any]) -> None:
        """Raises: ValueError for what vLLM refuses, and for any distribution but the softmax."""
        if body["model"] != self._name:
            raise ValueError(f"the model {body['model']!r} does not exist")
        if body["engine"] is not None:
            body["engine"] = int(body["engine"])
            if not 0 <= body["engine"] < self._engines:
                raise ValueError(f"data_parallel_rank {body['engine']} is out of range")
        if not isinstance(body.get("seed"), int):
            raise ValueError("no seed: all engines would draw with the same random numbers")
        if not body.get("return_token_ids") or body.get("logprobs") != 0:
            raise ValueError("token ids and logprobs were not asked for")
        for name, neutral in NEUTRAL.items():
            default = self._defaults.get(name)
            value = body.get(name, neutral if default is None else default)
            if value != neutral:
                raise ValueError(f"{name} would be {value}, the stub only draws from the softmax")
        if set(body.get("stop_token_ids") or ()) | {min(self._eos)} != self._eos:
            raise ValueError(f"stop_token_ids {body.get('stop_token_ids')} are not the model's")
