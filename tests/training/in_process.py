"""Whole training runs in this process, of a random model that is made in no time."""

import io
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from miner.config.run_files import Checkpoint, newest_checkpoint
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.learning.trainer import EpisodeTrainer
from miner.reporting.run_folder import RunFolder
from miner.training import run as training
from miner.training.preparation import prepare_run
from tests.builders import build_qwen3, build_tokenizer, save_base
from tests.training.commands import places

TINY = (
    "environment.channel=builtin",
    "environment.deck_sizes=[8]",
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "rollout.max_reply_tokens=4",
    "optimizer.learning_rate=1e-2",
    "optimizer.decay_share=0.01",
    "optimizer.warmup_steps=0",
    "evaluation.episodes=10",
    "evaluation.every_steps=100",
    "checkpoint.every_steps=100",
    "threads=1",
)


@dataclass
class Work:
    """A folder to train in, and what came of it."""

    folder: Path
    said: io.StringIO = field(default_factory=io.StringIO)
    trainers: list[EpisodeTrainer] = field(default_factory=list)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def published(self) -> Path:
        return self.folder / "out" / "task" / "repo"

    @property
    def steps(self) -> list[int]:
        """Optimizer steps in the order in which they were made."""
        return [record.step for record in RunFolder(self.run_dir).read().steps]

    @property
    def checkpoint(self) -> Checkpoint | None:
        return newest_checkpoint(self.run_dir / "checkpoints")

    def settings(self, *overrides: str, **environ: str) -> Settings:
        given = [*places(self.folder, self.base), *TINY, *overrides]
        return Settings.load(None, given, environ=environ)

    def train(self, *overrides: str, **environ: str) -> training.TrainResult:
        """As `python -m miner train` does with these overrides."""
        settings = self.settings(*overrides, **environ)
        prepare_run(settings, in_process=True)
        console = Console(file=self.said, width=200)
        return training.train(settings, console, Ranks())


def build_guesser(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A random model that says digits and ends, so that its episodes differ in worth.

    One coordinate is the same for every token, and the head makes a bias of it.
    """
    model = build_qwen3(tie_word_embeddings=False, max_position_embeddings=4096)
    digits = [tokenizer.convert_tokens_to_ids(digit) for digit in "01234567"]
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 8.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[digits, 0] = 1.5
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1.8
    return model


@contextmanager
def working_in(folder: Path) -> Iterator[Work]:
    """A base model in `folder`; handlers of signals are put back at the end."""
    work = Work(folder)
    tokenizer = build_tokenizer()
    save_base(work.base, build_guesser(tokenizer), tokenizer)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    class Seen(EpisodeTrainer):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)
            work.trainers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EpisodeTrainer", Seen)
        try:
            yield work
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
