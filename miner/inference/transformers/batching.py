"""Continuous batching over a transformers model: rows join and leave between decode steps.

Invariants:
* every row admitted is returned by `step` exactly once, with a reply or, if abandoned, without;
* what is sampled depends on the seed and the order in which sessions first appear, not on which
  rows happen to share a forward: each session draws from a separate stream;
* logits never depend on the cache: held states count only as far as their ids equal the prompt.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from miner.common_prefix import Ints, longest_prefix
from miner.inference.sampler import FinishReason, Sample
from miner.inference.transformers.forward import Forward
from miner.inference.transformers.slot_cache import LEAST_SHARED, SlotTable

MAX_FORWARD_TOKENS = 16_384
"""Bound on rows x tokens of one forward, and with it on the memory of activations."""

PADDING_SLACK = 256
"""Padding tokens that cost less than a separate forward."""


LEAST_SAVED = 64
"""Tokens of a prefill that pay for a later forward, as does half of it."""


def never(sampled: Sequence[int]) -> bool:
    """Without stop strings none is ever completed."""
    return False


@dataclass(slots=True, eq=False)
class DecodeRow:
    """One request: `ids` are the prompt's, then those sampled so far, `limit` of them at most.

    `held` of the prompt's were cached when the row began. `uniform` draws the row's random numbers;
    admission replaces it by the session's own stream. `stopped` tests, for the ids sampled so far,
    whether the last of them has completed a stop string.
    """

    ids: list[int]
    limit: int
    temperature: float
    session: int | None
    slot: int = -1
    cached: int = 0
    held: int = 0
    logprobs: list[float] = field(default_factory=list)
    weight_version: int = 0
    uniform: Callable[[], float] = random.random
    stopped: Callable[[Sequence[int]], bool] = never
    reply: Sample | None = None
    abandoned: bool = False


class BatchEngine:
    """Synchronous core of the transformers sampler; not thread-safe.

    Args:
        forward: the computation of logits.
        eos_token_ids: ids that end a reply.
        max_sessions: number of slots: rows that decode plus sessions whose states are kept.
        seed: seed of all sampling.
    """

    def __init__(
        self, forward: Forward, eos_token_ids: Collection[int], *, max_sessions: int, seed: int
    ) -> None:
        self._forward = forward
        self._eos = frozenset(eos_token_ids)
        self._table = SlotTable(max_sessions)
        self._waiting: list[DecodeRow] = []
        self._active: list[DecodeRow] = []
        self._seeds = random.Random(seed)
        self._streams: dict[int, random.Random] = {}
        self._weight_version = 0

    @property
    def busy(self) -> bool:
        """Return whether any row waits or decodes."""
        return self.requests > 0

    @property
    def requests(self) -> int:
        """Number of rows that wait or decode."""
        return len(self._waiting) + len(self._active)

    @property
    def sessions(self) -> int:
        """Number of sessions that have begun and not ended."""
        return len(self._streams)

    def admit(self, row: DecodeRow) -> None:
        """Queue `row`; it starts with the next step that has a slot for it."""
        row.uniform = self._stream(row.session).random
        row.weight_version = self._weight_version
        self._waiting.append(row)

    def step(self) -> list[DecodeRow]:
        """Sample one token for every row that has a slot; returns the rows that are over."""
        over = self._take_over()
        started = self._start_waiting()
        followers = find_followers(started) if self._forward.caches else {}
        ready = {row for row in self._active if row not in followers}
        while ready:
            self._decode([row for row in self._active if row in ready])
            led = {row: lead for row, lead in followers.items() if lead[0] in ready}
            for row, (leader, length) in led.items():
                self._forward.share(leader.slot, row, length)
                row.held = row.cached
            ready = set(led)
        return over + self._take_over()

    def forget(self, session: int) -> None:
        """Free the state of a session that has ended (idempotent)."""
        self._table.forget(session)
        self._streams.pop(session, None)

    def reset(self, weight_version: int) -> None:
        """Drop all cached states: the weights are `weight_version` from now on."""
        self._weight_version = weight_version
        self._table.forget_all()
        self._forward.reset()
        for row in self._active:
            row.cached = 0

    def abort(self) -> list[DecodeRow]:
        """Abort every row after a failed step; returns them without replies."""
        for row in (*self._waiting, *self._active):
            row.abandoned = True
        self.reset(self._weight_version)
        return self._take_over()

    def _stream(self, session: int | None) -> random.Random:
        if session is None:
            return random.Random(self._seeds.getrandbits(64))
        if session not in self._streams:
            self._streams[session] = random.Random(self._seeds.getrandbits(64))
        return self._streams[session]

    def _start_waiting(self) -> list[DecodeRow]:
        """Lease slots in order of arrival, as far as they reach; returns the rows started."""
        if not self._waiting:  # at most decode steps
            return []
        started = []
        held = [(row.slot, np.array(row.ids[: row.cached])) for row in self._active]
        while self._waiting:
            row = self._waiting[0]
            lease = self._table.lease(row.session, row.ids, held)
            if lease is None:
                break
            row.slot = lease.slot
            self._active.append(self._waiting.pop(0))  # gives its slot back if the next line fails
            self._forward.share(lease.donor, row, lease.cached)
            row.held = row.cached
            started.append(row)
        return started

    def _decode(self, rows: Sequence[DecodeRow]) -> None:
        for bucket in buckets(rows, self._forward):
            logits = self._forward.logits(bucket)
            temperatures = [row.temperature for row in bucket]
            uniforms = [row.uniform() for row in bucket]
            tokens, logprobs = draw(logits, temperatures, uniforms)
            for row, token, logprob in zip(bucket, tokens, logprobs, strict=True):
                self._append(row, token, logprob)

    def _append(self, row: DecodeRow, token: int, logprob: float) -> None:
        row.ids.append(token)
        row.logprobs.append(logprob)
        sampled = row.ids[-len(row.logprobs) :]
        reason: FinishReason | None = None
        if token in self._eos:
            reason = "stop"
        elif row.stopped(sampled):
            reason = "stop_string"
        elif len(sampled) == row.limit:
            reason = "length"
        if reason:
            row.reply = Sample(
                token_ids=tuple(sampled),
                logprobs=tuple(row.logprobs),
                finish_reason=reason,
                weight_version=row.weight_version,
                cached_tokens=row.held,
            )

    def _take_over(self) -> list[DecodeRow]:
        """Remove the rows that are over and end their leases."""
        over = [row for row in self._active if row.abandoned or row.reply is not None]
        for row in over:
            self._table.give_back(row.slot, row.session, row.ids[: row.cached])
        over += [row for row in self._waiting if row.abandoned]
        if over:
            gone = set(over)
            self._active = [row for row in self._active if row not in gone]
            self._waiting = [row for row in self._waiting if row not in gone]
        return over


def find_followers(rows: Sequence[DecodeRow]) -> dict[DecodeRow, tuple[DecodeRow, int]]:
    """Rows that begin as an earlier one does: that one, and how many ids they share.

    They wait for its prefill if that saves them enough: members of a group begin with the same
    prompt, and groups of one game with the same rules. A follower may lead others.
    """
    leaders: list[tuple[DecodeRow, Ints]] = []
    followers: dict[DecodeRow, tuple[DecodeRow, int]] = {}
    for row in rows:
        ids = np.array(row.ids[:-1], dtype=np.int64)
        half = (len(ids) - row.cached) // 2 + 1
        saved = max(LEAST_SHARED, min(half, LEAST_SAVED))
        if led := longest_prefix(ids, leaders, row.cached + saved):
            followers[row] = led
        leaders.append((row, ids))
    return followers


def buckets(rows: Sequence[DecodeRow], forward: Forward) -> Iterator[list[DecodeRow]]:
    """Split `rows` into forwards with little padding, each ascending by slot.

    Long prefills and single-token decodes thus alternate instead of padding each other; where rows
    share no states they are never mixed, since all that decode are one batch.
    """
    ordered = sorted(((forward.pending(row), row.slot, row) for row in rows), reverse=True)
    bucket: list[DecodeRow] = []
    width = real = 0
    for length, _, row in ordered:
        padded = width * (len(bucket) + 1)
        waste = padded - real - length
        mixed = length == 1 < width and not forward.caches
        wide = waste > max(PADDING_SLACK, real // 16) or padded > MAX_FORWARD_TOKENS
        if bucket and (wide or mixed):
            yield sorted(bucket, key=lambda row: row.slot)
            bucket = []
        if not bucket:
            width, real = length, 0
        bucket.append(row)
        real += length
    if bucket:
        yield sorted(bucket, key=lambda row: row.slot)


def draw(
    logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one id per row by inverting the cumulative distribution at the row's uniform number.

    Args:
        logits: `[rows, vocabulary]`, float32.
        temperatures: per row; 0 takes the most likely id.
        uniforms: per row, in [0, 1).

    Returns: ids and their log-probabilities under the distribution drawn from (0.0 when greedy).
    Raises: FloatingPointError where the logits are not finite.
    """
    temperature = torch.tensor(temperatures, device=logits.device)[:, None]
    greedy = temperature == 0
    logprobs = torch.log_softmax(logits / temperature.masked_fill(greedy, 1.0), dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    level = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    ids = torch.searchsorted(cumulative, level * cumulative[:, -1:], right=True)
    ids.clamp_(max=logits.shape[1] - 1)
    ids = torch.where(greedy, logits.argmax(dim=-1, keepdim=True), ids)
    drawn = logprobs.gather(1, ids)
    if not bool(drawn.isfinite().all()):
        raise FloatingPointError(
            "the model's logits are not finite: check the weights and the dtype they are run in"
        )
    return ids[:, 0].tolist(), drawn.masked_fill(greedy, 0.0)[:, 0].tolist()
