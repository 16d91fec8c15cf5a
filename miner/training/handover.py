"""The output path of a run: rank 0 writes it, all ranks help to put the weights together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from miner.distributed.ranks import Ranks
from miner.distributed.zero import gathered_weights
from miner.publishing.publisher import PublishedScore, Publisher
from miner.training.learner import Learner


class Handover:
    """Publishes to `output`; the methods are collective.

    Args:
        in_process: see `Publisher`.

    Raises: `PublishingError` on rank 0.
    """

    def __init__(self, output: Path, learner: Learner, ranks: Ranks, *, in_process: bool) -> None:
        self._learner = learner
        self._ranks = ranks
        self._publisher = Publisher(output, in_process=in_process) if ranks.leads else None

    def publish(self, trainer: Any, score: PublishedScore) -> None:
        """Publish the weights that `trainer` has now."""
        weights = gathered_weights(trainer)

        def publish() -> None:
            assert self._publisher is not None
            self._publisher.publish(lambda folder: self._learner.save(folder, weights), score)

        self._ranks.lead_does(publish)
