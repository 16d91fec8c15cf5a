"""A sampler over a vLLM engine in this process, stepped here: continuous batching without HTTP.

Invariants:
* the engine is touched by one worker thread only; requests that arrive while it steps join before
  the next step, and each reply is handed back as soon as its request has finished;
* no reply waits for another episode's: there are no turns in step;
* a request whose caller has gone is aborted in the engine;
* when the engine fails, every request in flight fails with `EngineLostError`, and so does every
  later one.
"""

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from miner.inference.sampler import EngineLostError, Sample, SamplerError, SamplingParams
from miner.inference.vllm.replies import ReplyRules

logger = logging.getLogger(__name__)


MakeParams = Callable[[dict[str, Any]], Any]
"""vLLM's SamplingParams from our options."""


def vllm_sampling_params(options: dict[str, Any]) -> Any:
    """`MakeParams` of the installed vLLM: whole replies at their end, and text only to stop at."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.FINAL_ONLY
    return VllmSamplingParams(**options, output_kind=kind, detokenize="stop" in options)


def take_over_threads() -> None:
    """Give the calling thread the number of threads that torch has in this process.

    torch does so itself, but only with its first parallel operation in a thread. vLLM on a CPU
    plans its attention before, by OpenMP's own number, and then refuses to run with another.
    """
    torch.get_num_threads()


def on_this_stream() -> Callable[[], None]:
    """Return a function that moves another thread to the CUDA device and stream of the calling one.

    vLLM copies its inputs on the stream of the thread that opened it; a thread begins with the
    default stream, where its first step would not wait for them.
    """
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()

    def choose() -> None:
        torch.cuda.set_device(device)
        torch.cuda.set_stream(stream)

    return choose


@dataclass(eq=False)
class _Request:
    """One request in flight: its prompt, the version of the weights, and the waiter's loop."""

    name: str
    prompt_ids: list[int]
    limit: int
    temperature: float
    stop: tuple[str, ...]
    version: int
    future: asyncio.Future[Sample]


class VllmColocatedSampler:
    """`Sampler` over an engine of this process (tensor parallel 1), which TRL seeds by rank.

    Requests have no seeds: with one, vLLM 0.31 on a CPU dies of the first prompt that
    it cuts into parts (its generators there cannot be set back).

    Args:
        engine: vLLM's LLMEngine; its calls and the fields of its replies that are used are listed
            in `tests.vllm_surface`, which is held against the installed vLLM.
        rules: rules of requests and replies.
        make_params: builds the engine's sampling parameters.
        prepare_thread: run once on the worker thread, such as choosing its CUDA device.
    """

    def __init__(
        self,
        engine: Any,
        rules: ReplyRules,
        *,
        make_params: MakeParams = vllm_sampling_params,
        prepare_thread: Callable[[], None] = take_over_threads,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._make_params = make_params
        self._names = itertools.count()
        self._lock = threading.Lock()
        self._stepping = False
        self._arrived: deque[_Request] = deque()
        self._left: deque[_Request] = deque()
        self._running: dict[str, _Request] = {}
        self._failure: Exception | None = None
        self.weight_version = 0
        self._worker = ThreadPoolExecutor(1, "vllm", initializer=prepare_thread)

    @property
    def context(self) -> int:
        return self._rules.context

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """Sample one reply; see `Sampler`. vLLM's prefix cache takes the place of sessions."""
        request = _Request(
            name=f"{next(self._names)}",
            prompt_ids=list(prompt_ids),
            limit=self._rules.limit(prompt_ids, params.max_tokens),
            temperature=params.temperature,
            stop=params.stop,
            version=self.weight_version,
            future=asyncio.get_running_loop().create_future(),
        )
        self._pass_on(self._arrived, request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._pass_on(self._left, request)
            raise

    async def end_session(self, session: int) -> None:
        """Nothing is kept by session."""

    def settle(self) -> None:
        """Wait until the engine runs nothing; requests without a waiter are dropped first.

        Called before the engine's weights or memory change: an aborted episode leaves its request
        behind, in the middle of a step.
        """
        self._worker.submit(lambda: None).result()  # behind the task that steps until all is done

    @property
    def failure(self) -> Exception | None:
        """The engine's failure; None while it works."""
        return self._failure

    def close(self) -> None:
        """Wait for the worker thread to end."""
        self._worker.shutdown()

    def _pass_on(self, box: deque[_Request], request: _Request) -> None:
        with self._lock:
            box.append(request)
            start, self._stepping = not self._stepping, True
        if start:
            self._worker.submit(self._step_until_idle)

    def _step_until_idle(self) -> None:
        """Worker thread."""
        while True:
            try:
                self._exchange()
                if self._engine.has_unfinished_requests():
                    for output in self._engine.step():
                        if output.finished:
                            self._finish(output)
            except Exception as error:
                self._fail_all(error)
            with self._lock:
                self._stepping = bool(self._running or self._arrived or self._left)
                if not self._stepping:
                    return

    def _exchange(self) -> None:
        """Give the engine what has arrived, and abort requests without a waiter."""
        while self._left:
            request = self._left.popleft()
            if self._running.pop(request.name, None):
                self._engine.abort_request([request.name])
        if self._failure is not None:
            raise self._failure
        while self._arrived:
            request = self._arrived.popleft()
            if request.future.cancelled():
                continue
            options = self._rules.options(request.limit, request.temperature, request.stop)
            prompt = {"prompt_token_ids": request.prompt_ids}
            try:
                self._engine.add_request(request.name, prompt, self._make_params(options))
            except ValueError as error:  # this request cannot be run; others can
                self._resolve(request, SamplerError(f"the engine refused a prompt: {error}"))
                continue
            self._running[request.name] = request

    def _finish(self, output: Any) -> None:
        request = self._running.pop(output.request_id, None)
        if request is None:
            return
        try:
            [reply] = output.outputs
            ids = list(reply.token_ids)
            self._resolve(
                request,
                self._rules.sample(
                    ids,
                    chosen_logprobs(ids, reply.logprobs),
                    reply.finish_reason or "nothing",
                    limit=request.limit,
                    weight_version=request.version,
                    source="the engine",
                    stop=request.stop,
                    stop_reason=reply.stop_reason,
                    cached_tokens=output.num_cached_tokens,
                ),
            )
        except (SamplerError, ValueError) as error:
            self._resolve(request, SamplerError(str(error)))

    def _fail_all(self, error: Exception) -> None:
        if self._failure is None:
            logger.error("the vLLM engine failed", exc_info=error)
            self._failure = error
        with self._lock:
            lost = [*self._running.values(), *self._arrived]
            self._arrived.clear()
        self._running.clear()
        for request in lost:
            failure = EngineLostError(f"the vLLM engine failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._resolve(request, failure)

    def _resolve(self, request: _Request, outcome: Sample | Exception) -> None:
        def wake() -> None:
            if request.future.done():
                return
            if isinstance(outcome, Exception):
                request.future.set_exception(outcome)
            else:
                request.future.set_result(outcome)

        with suppress(RuntimeError):  # the loop was closed: no waiter is left
            request.future.get_loop().call_soon_threadsafe(wake)


def chosen_logprobs(ids: Sequence[int], by_position: Any) -> list[float]:
    """The log-probability of each id from vLLM's list of {id: Logprob}.

    Raises: ValueError where a position or its id is missing.
    """
    if by_position is None or len(by_position) != len(ids):
        raise ValueError(f"the engine gave no logprob for each of {len(ids)} ids")
    try:
        return [float(at[token].logprob) for token, at in zip(ids, by_position, strict=True)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the engine gave logprobs without the drawn id ({error!r})") from error
