"""Which conversations a supervised step learns."""

from collections.abc import Sequence
from pathlib import Path
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EpisodeTask
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.learning.forest import Row
from miner.recorded.conversations import read_conversations
from miner.recorded.environment import RecordedSource
from miner.recorded.rows import RecordedRows
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import RolloutRow
from miner.training.supervised import Supervised, likelihood
from tests.builders import build_tokenizer
from tests.recorded.made import swe_zero


def test_the_next_step_is_encoded_while_one_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RecordedSource(read_conversations((swe_zero(tmp_path),)), "qwen25")
    wanted = ["environment.channel=recorded", "rollout.max_episode_tokens=4096"]
    settings = Settings.load(None, wanted, environ={})
    rollout: Any = SimpleNamespace(ranks=SimpleNamespace(count=1, rank=0), latest=None)
    made, of = [], RecordedRows.of

    def seen(self: RecordedRows, number: int) -> list[RolloutRow]:
        made.append(current_thread())
        return of(self, number)

    monkeypatch.setattr(RecordedRows, "of", seen)
    play = Supervised(settings, ChatRenderer(build_tokenizer()), source, rollout)
    play(["p"] * 2, SimpleNamespace(state=SimpleNamespace(global_step=0)))
    play._ahead[1].result()
    assert len(made) == 4
    assert current_thread() not in made


def test_no_two_steps_or_processes_have_the_same_ones(tmp_path: Path) -> None:
    source = RecordedSource(read_conversations((swe_zero(tmp_path),)), "qwen25")
    wanted = ["environment.channel=recorded", "rollout.max_episode_tokens=4096"]
    settings = Settings.load(None, wanted, environ={})
    seen: list[tuple[int, ...]] = []
    for rank in range(2):
        rollout: Any = SimpleNamespace(ranks=SimpleNamespace(count=2, rank=rank), latest=None)
        play = Supervised(settings, ChatRenderer(build_tokenizer()), source, rollout)
        for step in range(2):
            at = SimpleNamespace(state=SimpleNamespace(global_step=step))
            seen += map(tuple, play(["p"] * 4, at)["prompt_ids"])
    assert len(set(seen)) == len(seen) >= 16
    at.state.global_step = 0  # a run that has gone back
    assert [*map(tuple, play(["p"] * 4, at)["prompt_ids"])] == seen[-8:-4]


def test_a_conversation_whose_form_was_not_seen_in_time_has_no_score(tmp_path: Path) -> None:
    found = read_conversations((swe_zero(tmp_path),))
    made = RecordedRows(found, ChatRenderer(build_tokenizer()), "qwen25", 4096)
    tasks = [EpisodeTask("recorded", number, number) for number in found.held_out[:2]]
    order = []

    def logprobs_of(rows: Sequence[Row]) -> list[Any]:
        order.append("likelihoods")
        return [np.log(np.full(len(row.targets), 0.25)) for row in rows]

    def play() -> EvaluationResult:
        order.append("play")  # until the time is over
        ends: list[dict[str, Any]] = [{"score": 0.0}, {"score": None, "failure": "no_time"}]
        records = [EpisodeRecord.of(task, **end) for task, end in zip(tasks, ends, strict=True)]
        return EvaluationResult(
            policy="model", channel="recorded", environment="recorded", episodes=tuple(records)
        )

    trainer: Any = SimpleNamespace(logprobs_of=logprobs_of)
    result = likelihood(made, trainer, Ranks(), tasks, play)
    assert [episode.score for episode in result.episodes] == [pytest.approx(0.25), None]
    assert order == ["likelihoods", "play"]
