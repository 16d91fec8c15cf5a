"""Which conversations a supervised step learns."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from miner.config.settings import Settings
from miner.recorded.conversations import read_conversations
from miner.recorded.environment import RecordedSource
from miner.rollout.renderer import ChatRenderer
from miner.training.supervised import Supervised
from tests.builders import build_tokenizer
from tests.recorded.made import swe_zero


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
