"""Every token of the newest steps with all that its loss was made of (`tokens/STEP.RANK.npz`).

Invariants:
* the loss that was logged follows from what is kept, and from nothing else;
* no more steps are kept than asked for, and a disk that refuses one ends the records, not the run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from miner.common_prefix import common_prefix
from miner.config.errors import ConfigurationError

FOLDER = "tokens"
VERSION = 4
_RAGGED = ("ids", "turns", "at", "sampled", "learned", "reference", "advantages")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowTokens:
    """One training row.

    Attributes:
        episode: number of its episode.
        prompt: number of `ids` in the prompt; the rest is the completion.
        turns: of each completion token the turn that sampled it, or -1.
        at: offsets in the completion of the tokens with loss. The following have one entry of each:
        sampled, learned, reference: log-probabilities when sampled (NaN: was not), when learned
            (NaN: the row was not computed), and by the base (empty without a KL term).
        advantages: as the loss has them, before any importance correction.
        tree: the tree in which the row was computed, or -1.
        weight: share in the cross-entropy towards targets of a row that was not sampled, or its
            advantage.
    """

    episode: int
    prompt: int
    ids: np.ndarray
    turns: np.ndarray
    at: np.ndarray
    sampled: np.ndarray
    learned: np.ndarray
    reference: np.ndarray
    advantages: np.ndarray
    tree: int
    weight: float | None


@dataclass(frozen=True, slots=True)
class StepTokens:
    """One step, as one process or all of them learned it.

    Attributes:
        rules: parts of the loss: `divisor` of the sum over this process's tokens, `beta`, `clip`
            (bounds of the importance ratio, None without correction), `credit`, `group_size`
            and `by_policy`: what was not sampled counts as often as the policy gives it.
        episodes: of each the task, score and parts of the reward by turn; None for a lost one.
        texts: of each token id in the rows.
    """

    step: int
    rules: dict[str, Any]
    episodes: list[dict[str, Any] | None]
    rows: list[RowTokens]
    texts: dict[int, str]

    def factor(self, row: RowTokens) -> np.ndarray:
        """The importance factor of each token with loss, 1 where nothing is corrected; of a reply
        that counts by policy, its probability."""
        if row.weight is not None and self.rules["by_policy"]:
            return np.full(len(row.at), np.exp(row.learned.sum()))
        if self.rules["clip"] is None:
            return np.ones(len(row.at))
        ratio = np.clip(np.exp(row.learned - row.sampled), *self.rules["clip"])
        return np.where(np.isnan(ratio), 1.0, ratio)

    @property
    def loss(self) -> float:
        """The loss again, from the record alone; rows that were not computed have none."""
        total = 0.0
        for row in self.rows:
            if row.tree < 0:
                continue
            total -= float((row.advantages * self.factor(row)).sum())
            if self.rules["beta"]:
                apart = (row.reference - row.learned)[~np.isnan(row.sampled)]
                total += self.rules["beta"] * float((np.exp(apart) - apart - 1).sum())
        return total / self.rules["divisor"]

    def write(self, path: Path) -> None:
        """Replace `path`. Raises: OSError."""
        ids = [row.ids for row in self.rows]
        # rows of one decision come one after another, each with the whole prompt
        held = [0, *(common_prefix(one, other) for one, other in pairwise(ids))]
        parts = {name: [getattr(row, name) for row in self.rows] for name in _RAGGED}
        parts["ids"] = [whole[count:] for whole, count in zip(ids, held, strict=True)]
        arrays = {name: np.concatenate(values) for name, values in parts.items()}
        for name, values in parts.items():
            arrays[f"{name}_count"] = np.array([len(value) for value in values])
        arrays["held"] = np.array(held)
        about = {
            "version": VERSION,
            "step": self.step,
            "rules": self.rules,
            "episodes": self.episodes,
            "rows": [(row.episode, row.prompt, row.tree, row.weight) for row in self.rows],
            "texts": self.texts,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # of its one flag
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: Path) -> StepTokens:
        """The content that `write` has written.

        Raises: `ConfigurationError` for a file that is none, or of another version.
        """
        try:
            with np.load(path) as arrays:
                about = json.loads(arrays["about"].tobytes())
                if about["version"] != VERSION:
                    raise ConfigurationError(
                        f"{path} is of version {about['version']}, and this miner reads {VERSION}: "
                        "explain it with the miner that wrote it"
                    )
                parts = {name: _parts(arrays[name], arrays[f"{name}_count"]) for name in _RAGGED}
                for number, held in enumerate(arrays["held"].tolist()):
                    before = parts["ids"][number - 1][:held]  # of the first none
                    parts["ids"][number] = np.r_[before, parts["ids"][number]]
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigurationError(f"{path} is not a record of tokens: {error}") from None
        rows = [
            RowTokens(
                episode=episode,
                prompt=prompt,
                tree=tree,
                weight=weight,
                **{name: parts[name][number] for name in _RAGGED},
            )
            for number, (episode, prompt, tree, weight) in enumerate(about["rows"])
        ]
        texts = {int(token): text for token, text in about["texts"].items()}
        return cls(about["step"], about["rules"], about["episodes"], rows, texts)


class TokenRecords:
    """The records of a run.

    Args:
        keep: newest steps that are kept; -1: all.
        rank: of this process, and how many there are. It writes and removes only its own files,
            and removes those of ranks that the run had before and has no more.
    """

    def __init__(self, run_dir: Path, keep: int = -1, rank: tuple[int, int] = (0, 1)) -> None:
        self._folder = run_dir / FOLDER
        self._rank, self._ranks = rank
        self.keep = keep

    def add(self, step: StepTokens) -> None:
        """Write the step. Remove the oldest beyond the bound, and what an earlier process recorded
        from this step on."""
        new = self._folder / f"{step.step:06d}.{self._rank}.npz"
        try:
            step.write(new)
            mine = [part for part in self._parts() if part[1] % self._ranks == self._rank]
            kept = sorted({at for at, *_ in mine if at <= step.step})[-max(self.keep, 0) :]
            for at, _, path in mine:
                if at not in kept or (at == step.step and path != new):
                    path.unlink()
        except OSError as error:
            self.keep = 0
            logger.warning("%s is written no more: %s", self._folder, error)

    def steps(self) -> list[int]:
        """Those that are there, in ascending order."""
        return sorted({at for at, *_ in self._parts()})

    def of(self, step: int) -> list[StepTokens]:
        """The parts of a step, one of each process. Raises: `ConfigurationError`."""
        parts = [StepTokens.read(path) for at, _, path in self._parts() if at == step]
        if not parts:
            there = self.steps()
            known = f"there are {there[0]} to {there[-1]}" if there else "there are none"
            raise ConfigurationError(
                f"{self._folder} has no record of step {step}, {known}: the last steps are kept, "
                "as many as token_records is set to (-1: all)"
            )
        return parts

    def _parts(self) -> list[tuple[int, int, Path]]:
        """Step, rank and path of each file, in ascending order."""
        named = ((path.name.split("."), path) for path in self._folder.glob("[0-9]*.npz"))
        return sorted((int(step), int(rank), path) for (step, rank, _), path in named)


def reward_of(turns: Sequence[Sequence[float]]) -> float:
    """Reward of an episode whose turns are recorded as `TurnParts`: score less penalties."""
    return sum(sum(parts) for _, *parts in turns)


def step_loss(parts: Sequence[StepTokens]) -> float:
    """The loss of a step of several processes, as it is logged: the mean of theirs."""
    return math.fsum(part.loss for part in parts) / len(parts)


def _parts(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(counts)[:-1])
