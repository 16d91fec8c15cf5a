"""The processes that train one model together, and their agreement.

Words are torch's: a rank is one process, the world all of them; rank 0 leads: it writes files,
prints and publishes.

Invariants:
* all that steers the training loop (when to stop, what to publish, the learning rate) is decided
  once and shared, because ranks that disagree wait for each other for ever;
* these agreements travel over a separate process group, on the CPU: they neither disturb nor
  wait for the collectives of the backward pass.
"""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.launch import free_port, world_size

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=6)
"""For a slower rank. Hangs are found by the heartbeat, which knows what the run is doing."""


class LeadFailedError(Exception):
    """Rank 0 could not do what all of them wait for; it reports the failure itself."""


class Ranks:
    """This process among those that train together.

    All methods are collective: every rank calls them, in the same order. Alone, they cost nothing.

    Args:
        group: process group for the agreements; None for a process that trains alone.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.count = dist.get_world_size(group) if group is not None else 1

    @property
    def leads(self) -> bool:
        """Return whether this is rank 0."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        """Rank 0's value; what the others pass is dropped."""
        if self._group is None:
            return value
        values = [value if self.leads else None]
        dist.broadcast_object_list(values, src=0, group=self._group)
        shared: Any = values[0]
        return shared

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        return max(self.gather(number))

    def detach(self) -> None:
        """End the world in order, once all ranks are done: torch's threads must not outlive it."""
        if not dist.is_initialized():
            return
        try:
            self.gather(None)
            dist.destroy_process_group()
        except RuntimeError as error:
            logger.warning("the ranks did not detach in order: %s", error)

    def lead_does(self, work: Callable[[], T]) -> T:
        """Return the result of `work` on rank 0, which alone does it.

        Raises: what `work` raised on rank 0, `LeadFailedError` on the others.
        """
        if not self.leads:
            done, value = self.broadcast((False, None))
            if not done:
                raise LeadFailedError
            return value  # type: ignore[return-value]
        try:
            result = work()
        except BaseException:
            self.broadcast((False, None))
            raise
        self.broadcast((True, result))
        return result


def join_ranks(settings: Settings) -> Ranks:
    """The world that the launcher started this process in.

    Raises: `ConfigurationError` if there are fewer GPUs than processes.
    """
    count = world_size()
    if torch.cuda.is_available() and count > torch.cuda.device_count():
        raise ConfigurationError(
            f"{count} trainer processes need a GPU each, {torch.cuda.device_count()} can be seen: "
            "lower --processes"
        )
    if count > 1 or settings.optimizer.zero_stage:
        _open_world(with_deepspeed=settings.optimizer.zero_stage > 0)
    if count == 1:
        return Ranks()
    return Ranks(dist.new_group(backend="gloo", timeout=LONGEST_WAIT))


def _open_world(*, with_deepspeed: bool) -> None:
    """Connect the ranks, before transformers would do it with another backend and limit."""
    ensure_world_variables()
    backend, device = "gloo", None
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        backend = "nccl"
    # without its device, NCCL guesses one by the rank at the first barrier
    dist.init_process_group(backend, timeout=LONGEST_WAIT, device_id=device)
    if with_deepspeed:
        import deepspeed  # takes seconds, and only GPU machines have it

        deepspeed.init_distributed(backend, timeout=LONGEST_WAIT)  # over the group there is


def ensure_world_variables() -> None:
    """Set a launcher's variables (RANK, MASTER_PORT, ...) where there is no launcher."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (alone | {"MASTER_PORT": str(free_port())}).items():
        os.environ.setdefault(name, value)
