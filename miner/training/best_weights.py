"""The trained weights with the highest held-out score, without the optimizer, in one file.

Invariants:
* the file is replaced as a whole, and only by weights that were published;
* the base needs no file: its folder is loaded again, and adapters return to no change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from miner.config.run_files import BEST_WEIGHTS_FILE
from miner.distributed.ranks import Ranks
from miner.distributed.zero import gathered
from miner.training.learner import Learner
from miner.training.run_disk import RunDisk


class BestWeights:
    """Kept by rank 0, put back by all ranks. Both methods are collective.

    Args:
        disk: of the run folder, whose file outlives the process.
    """

    def __init__(self, learner: Learner, ranks: Ranks, disk: RunDisk) -> None:
        self._file = disk.folder / BEST_WEIGHTS_FILE
        self._learner = learner
        self._ranks = ranks
        self._disk = disk

    def keep(self, step: int) -> None:
        """Keep the current weights, of `step`; where the disk has no room, those before stay."""
        weights = {}
        for name, parameter in self._learner.trained.items():
            with gathered([parameter]):
                if self._ranks.leads:
                    weights[name] = parameter.detach().to("cpu", copy=True).contiguous()
        if self._ranks.leads:
            self._write(weights, step)

    def put_back(self) -> int:
        """Put the kept weights, else the base's, into the model; returns their step, or 0."""
        with suppress(FileNotFoundError), safe_open(self._file, "pt") as file:
            if set(file.keys()) == self._learner.trained.keys():  # else of another tuning
                self._fill(file.get_tensor)
                return int(file.metadata()["step"])
        self._fill(self._learner.untrained_weights().__getitem__)
        return 0

    def _fill(self, weight: Callable[[str], torch.Tensor]) -> None:
        for name, parameter in self._learner.trained.items():
            with gathered([parameter], changed=True):
                parameter.data.copy_(weight(name))

    def _write(self, weights: Mapping[str, torch.Tensor], step: int) -> None:
        beside = self._file.with_name(f".{self._file.name}")
        lacking = self._disk.lacks(sum(weight.nbytes for weight in weights.values()))
        try:
            if not lacking:
                save_file(dict(weights), beside, metadata={"step": str(step)})
                beside.replace(self._file)
        except (OSError, SafetensorError) as error:
            beside.unlink(missing_ok=True)
            lacking = str(error)
        if lacking:
            self._disk.note(f"step {step}: its weights are not kept to return to, {lacking}")
