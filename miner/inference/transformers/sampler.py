"""A sampler over a plain transformers model, for one process on a CPU or a small GPU.

Invariants:
* the model runs on one worker thread, never on the event loop; requests that arrive while others
  decode join the next step;
* the model is in evaluation mode only while requests are in flight, and back in the modes it was
  in before the last of them returns;
* `end_session` returns only when no forward works for that session any more: once all sessions
  have ended the weights may change;
* correctness never depends on the cache, which `invalidate` or a new `weight_version` drops.

Memory of the cache in bytes, at most:
`2 * layers * kv_heads * head_dim * dtype_size * max_sessions * longest_sequence`.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from miner.config.contract import SERVED_BY_TRANSFORMERS
from miner.inference.sampler import Sample, SamplerError, SamplingParams, room_for_reply
from miner.inference.transformers.batching import BatchEngine, DecodeRow
from miner.inference.transformers.forward import (
    CachedForward,
    Forward,
    PlainForward,
    attention_obstacle,
    cache_obstacle,
    evaluation_mode,
    trial_obstacle,
)
from miner.inference.transformers.grouped_attention import group_attention
from miner.inference.transformers.own_cache import OwnCacheForward
from miner.inference.transformers.stop_strings import StopStrings

logger = logging.getLogger(__name__)

LOOP_ROUNDS = 8
"""Rounds of the event loop within which a coroutine that got its reply asks again, if it can."""

LOOP_PATIENCE_S = 1.0
"""Longest wait for these rounds."""

QUIET_S = 0.005
"""After so long without a request, callers that are still to come are not waited for."""

GATHERING_S = 0.1
"""Longest wait for callers that keep coming one by one."""

Outcome = Sample | SamplerError | None
"""End of a request: with a reply, with the engine's failure, or abandoned by its caller."""


class TransformersSampler:
    """`Sampler` by continuous batching, with a key-value cache kept per session.

    Args:
        model: a decoder-only model; layers of other kinds than full attention share no states.
        tokenizer: gives the end-of-sequence id, next to those of the model's generation config.
        max_sessions: requests that decode at once plus idle sessions whose states are kept.
        seed: seed of all sampling; ids are reproducible given the order of sessions' arrival.

    Attributes:
        out_of_memory: cause of the model's last failure, if it was that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_sessions: int = 256,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        config = model.config.get_text_config()
        self._vocabulary = config.vocab_size
        self.context = getattr(config, "max_position_embeddings", sys.maxsize)
        self._engine = BatchEngine(
            _best_forward(model),
            eos_token_ids(model, tokenizer),
            max_sessions=max_sessions,
            seed=seed,
        )
        self.out_of_memory: torch.OutOfMemoryError | None = None
        self._weight_version = 0
        self._step_lock = threading.Lock()
        self._drain_lock = threading.Lock()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop
        self._inbox: deque[DecodeRow] = deque()
        self._news = threading.Event()
        self._ended: deque[int] = deque()
        self._in_flight: dict[int, DecodeRow] = {}
        self._futures: dict[DecodeRow, asyncio.Future[Outcome]] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """Sample one reply; see `Sampler`. A reply also ends where the model's context ends.

        Raises: `SamplerError` if the prompt cannot be run or the model fails.
        """
        room = room_for_reply(prompt_ids, self._vocabulary, self.context)
        if session in self._in_flight:
            session = None
        row = DecodeRow(
            ids=list(prompt_ids),
            limit=min(params.max_tokens, room),
            temperature=params.temperature,
            session=session,
        )
        if params.stop:
            row.stopped = StopStrings(self._tokenizer, params.stop)
        try:
            outcome = await asyncio.shield(self._submit(row))
        except asyncio.CancelledError:
            row.abandoned = True
            raise
        if isinstance(outcome, Sample):
            return outcome
        raise outcome or SamplerError(f"session {session} ended while a request was in flight")

    async def end_session(self, session: int) -> None:
        """Forget `session`; a request still in flight for it is aborted first."""
        if session in self._in_flight:
            row = self._in_flight[session]
            row.abandoned = True
            await asyncio.shield(self._futures[row])
        self._ended.append(session)
        self._news.set()

    @property
    def weight_version(self) -> int:
        """Version of the weights, reported with each sample. Setting it drops all states."""
        return self._weight_version

    @weight_version.setter
    def weight_version(self, version: int) -> None:
        with self._step_lock:
            self._weight_version = version
            self._engine.reset(version)

    def invalidate(self) -> None:
        """Drop all cached states, because the weights have changed."""
        self.weight_version = self._weight_version

    def close(self) -> None:
        """Wait for the worker thread to end."""
        self._worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(self, row: DecodeRow) -> asyncio.Future[Outcome]:
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._futures[row] = future
        if row.session is not None:
            self._in_flight[row.session] = row
        with self._drain_lock:
            self._inbox.append(row)
            self._news.set()
            start, self._draining = not self._draining, True
        if start:
            self._worker.submit(self._drain)
        return future

    def _drain(self) -> None:
        """Worker thread: run until no reply is waited for."""
        more = True
        while more:
            over = self._run_until_idle()
            with self._drain_lock:
                more = self._draining = bool(self._inbox)
            self._deliver(over)

    def _let_callers_ask(self) -> None:
        """Wait for those who will ask soon, so that they share the next forward.

        Callers whose environment answers at once ask within a few rounds of the event loop, those
        behind a server one after the other. All sessions known are waited for, but none for long.
        """
        self._let_loop_run()
        latest = time.monotonic() + GATHERING_S
        while not self._all_ask() and time.monotonic() < latest:
            self._news.clear()
            if not self._all_ask() and not self._news.wait(QUIET_S):
                break

    def _all_ask(self) -> bool:
        """Return whether every session that has begun and not ended waits for a reply."""
        with self._step_lock:
            self._forget_ended()
            return 0 < self._engine.sessions <= self._engine.requests + len(self._inbox)

    def _let_loop_run(self) -> None:
        """Wait until the event loop has run its ready callbacks; an idle loop is done at once."""
        over = threading.Event()

        def go_round(left: int) -> None:
            if left:
                loop.call_soon(go_round, left - 1)
            else:
                over.set()

        loop = self._loop
        with suppress(RuntimeError):  # the loop was closed: no request can come
            loop.call_soon_threadsafe(go_round, LOOP_ROUNDS)
            over.wait(LOOP_PATIENCE_S)

    def _run_until_idle(self) -> dict[DecodeRow, Outcome]:
        """Step until no row is left; the last rows are returned once the model's modes are back."""
        with evaluation_mode(self._model):
            over: dict[DecodeRow, Outcome] = {}
            while self._engine.busy or self._inbox:
                if over or not self._engine.busy:
                    self._deliver(over)
                    self._let_callers_ask()
                over = self._step()
            return over

    def _step(self) -> dict[DecodeRow, Outcome]:
        with self._step_lock:
            self._forget_ended()
            while self._inbox:
                self._engine.admit(self._inbox.popleft())
            try:
                return {row: row.reply for row in self._engine.step()}
            except Exception as error:
                logger.exception("the model failed while sampling")
                if isinstance(error, torch.OutOfMemoryError):
                    self.out_of_memory = error
                failure = SamplerError(f"the model failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                return dict.fromkeys(self._engine.abort(), failure)

    def _forget_ended(self) -> None:
        while self._ended:
            self._engine.forget(self._ended.popleft())

    def _deliver(self, over: dict[DecodeRow, Outcome]) -> None:
        """Hand outcomes to the event loops that wait for them, each loop's at once."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[DecodeRow, Outcome]] = defaultdict(dict)
        for row, outcome in over.items():
            by_loop[self._futures[row].get_loop()][row] = outcome
        for loop, outcomes in by_loop.items():
            with suppress(RuntimeError):  # the loop was closed: no waiter is left
                loop.call_soon_threadsafe(self._resolve, outcomes)

    def _resolve(self, outcomes: dict[DecodeRow, Outcome]) -> None:
        """Event loop thread: wake the callers."""
        for row, outcome in outcomes.items():
            if row.session is not None:
                del self._in_flight[row.session]
            self._futures.pop(row).set_result(outcome)


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end a reply where the model is graded: by the tokenizer, and for all but some
    types by the model's generation config."""
    ids = {tokenizer.eos_token_id}
    plain = model.config.model_type in SERVED_BY_TRANSFORMERS
    generation = None if plain else model.generation_config
    configured = generation.eos_token_id if generation else None
    ids.update(configured if isinstance(configured, list) else [configured])
    ids.discard(None)
    if not ids:
        raise ValueError("neither the tokenizer nor the generation config names an EOS token")
    return frozenset(ids)


def _best_forward(model: PreTrainedModel) -> Forward:
    if attention_obstacle(model) is None:
        group_attention(model)
    obstacle = cache_obstacle(model)
    if obstacle is None:
        return CachedForward(model)
    own = OwnCacheForward(model)
    refused = trial_obstacle(model, own)
    if refused is None:
        logger.warning(
            "sampling with the model's own cache, of which nothing is shared: %s", obstacle
        )
        return own
    logger.warning("sampling without a key-value cache (slow): %s; its own: %s", obstacle, refused)
    return PlainForward(model)
